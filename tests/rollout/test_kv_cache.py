"""The slots, the masks and the grouped attention, each against the slow way."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from codriver.errors import InputError
from codriver.rollout.kv_cache import DecodeMask, PromptCache, SlotCache, grouped_attention


def states(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape), torch.randn(shape)


def test_each_row_writes_at_its_own_position_and_the_longest_decides_what_is_read():
    cache = SlotCache(num_slots=4, capacity=8)
    cache.place(torch.tensor([0, 5, 2]), 6)
    keys, values = states(3, 2, 1, 4)
    seen_keys, seen_values = cache.update(keys, values, 0)
    assert seen_keys.shape == seen_values.shape == (3, 2, 6, 4)
    for row, position in enumerate([0, 5, 2]):
        torch.testing.assert_close(seen_keys[row, :, position], keys[row, :, 0])
        torch.testing.assert_close(seen_values[row, :, position], values[row, :, 0])
    assert seen_keys.count_nonzero() == keys.numel()
    assert seen_keys.data_ptr() == cache.layers[0].keys.data_ptr()  # a view: nothing was copied


def test_layers_may_differ_in_heads_and_head_sizes_and_in_the_size_of_values():
    cache = SlotCache(num_slots=2, capacity=4)
    cache.place(torch.tensor([1, 3]), 4)
    for layer, (heads, size) in enumerate([(2, 4), (1, 6), (2, 3)]):
        keys, values = torch.randn(2, heads, 1, size), torch.randn(2, heads, 1, size + 1)
        seen_keys, seen_values = cache.update(keys, values, layer)
        torch.testing.assert_close(seen_keys[1, :, 3], keys[1, :, 0])
        torch.testing.assert_close(seen_values[0, :, 1], values[0, :, 0])


def test_a_prompt_is_filled_into_several_slots_and_moved_and_cleared():
    prompt, cache = PromptCache(), SlotCache(num_slots=4, capacity=8)
    keys, values = states(2, 2, 3, 4)
    prompt.update(keys, values, 0)
    cache.fill([3, 0, 1], prompt.take(torch.tensor([3, 3])), [1, 0, 1])
    slots = cache.layers[0]
    torch.testing.assert_close(slots.keys[[3, 0, 1], :, :3], keys[[1, 0, 1]])
    torch.testing.assert_close(slots.values[[3, 0, 1], :, :3], values[[1, 0, 1]])
    cache.move(0, 3, 2)
    torch.testing.assert_close(slots.keys[3, :, :3], torch.cat([keys[0, :, :2], keys[1, :, 2:]], 1))
    cache.clear(0)
    assert slots.keys[0].count_nonzero() == slots.values[0].count_nonzero() == 0


def test_padding_of_a_prompt_is_zero_even_where_it_was_not_a_number():
    prompt = PromptCache()
    keys, values = states(2, 2, 3, 4)
    keys[0, :, 2], values[0, :, 2] = float("nan"), float("inf")
    prompt.update(keys, values, 0)
    for taken in prompt.take(torch.tensor([2, 3])).layers[0]:
        assert taken[0, :, 2].count_nonzero() == 0 and torch.isfinite(taken).all()
        assert taken[1].count_nonzero() == taken[1].numel()


def config(**known: object) -> SimpleNamespace:
    return SimpleNamespace(**known)


def test_a_mask_lets_each_row_see_itself_and_what_came_before():
    mask = DecodeMask.of(config()).build(torch.tensor([0, 2]), 4, torch.float32)
    assert isinstance(mask, torch.Tensor) and mask.shape == (2, 1, 1, 4)
    assert (mask[:, 0, 0] == 0).tolist() == [[True, False, False, False], [True, True, True, False]]


def test_a_sliding_window_counts_the_position_itself():
    masks = DecodeMask.of(config(layer_types=["sliding_attention", "full_attention"], sliding_window=2))
    built = masks.build(torch.tensor([0, 3]), 4, torch.bfloat16)
    assert isinstance(built, dict)
    assert (built["sliding_attention"][:, 0, 0] == 0).tolist() == [
        [True, False, False, False],
        [False, False, True, True],
    ]
    assert (built["full_attention"][1, 0, 0] == 0).all()
    all_sliding = DecodeMask.of(config(sliding_window=2)).build(torch.tensor([3]), 4, torch.float32)
    assert isinstance(all_sliding, torch.Tensor) and (all_sliding == 0).sum() == 2


@pytest.mark.parametrize(
    "known", [{"layer_types": ["linear_attention", "full_attention"]}, {"attention_chunk_size": 8}]
)
def test_layers_without_keys_and_values_per_position_are_refused(known):
    with pytest.raises(InputError, match="layers of kind (linear|chunked)_attention; expected"):
        DecodeMask.of(config(**known))


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_grouped_attention_equals_attention_with_repeated_heads(kv_heads):
    query, (keys, values) = torch.randn(3, 6, 1, 4), states(3, kv_heads, 5, 4)
    mask = DecodeMask.of(config()).build(torch.tensor([0, 4, 2]), 5, torch.float32)
    assert isinstance(mask, torch.Tensor)
    out, _ = grouped_attention(torch.nn.Identity(), query, keys, values, mask, scaling=0.3)
    repeated = (x.repeat_interleave(6 // kv_heads, dim=1) for x in (keys, values))
    slow = scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(out, slow.transpose(1, 2))
