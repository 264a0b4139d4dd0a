"""Keys and values of the live completions in memory that is allocated once, and the attention that reads it.

Each slot holds one completion, each at its own length; live rows are slots 0..R-1. Nothing is concatenated or copied
per token: a step writes one position per row and attends to a view of the first L positions.

Shapes: S slots, R live rows, N prompts of one prefill, P prompt positions, L positions in use, C capacity of a slot,
        H heads, K key-value heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer

from codriver.errors import InputError

GROUPED_ATTENTION = "codriver_grouped"
"""Name under which `grouped_attention` is known to transformers."""


@dataclass(frozen=True, slots=True)
class PromptKV:
    """Keys and values of prefilled prompts, right-padded; padding is 0."""

    layers: list[tuple[Tensor, Tensor]]
    """Per layer: keys and values, [N, K, P, D] each."""

    def row(self, index: int, length: int) -> "PromptKV":
        """A copy of one prompt alone, so that the others can be freed."""
        return PromptKV([(k[index : index + 1, :, :length].clone(), v[index : index + 1, :, :length].clone())
                         for k, v in self.layers])  # fmt: skip


class PromptCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """What one prefill forward writes to: whole prompts, sliding-window layers included."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)

    def take(self, lengths_N: Tensor) -> PromptKV:
        """The prompts' keys and values, with 0 where a prompt is padded.

        Zero, because a masked position still enters attention as 0 x value, and 0 x NaN is NaN.
        """
        layers = [(layer.keys, layer.values) for layer in self.layers]
        if int(lengths_N.min()) < int(lengths_N.max()):
            pad_NP = torch.arange(layers[0][0].shape[2], device=lengths_N.device) >= lengths_N[:, None]
            for pair in layers:
                for states in pair:
                    states.masked_fill_(pad_NP[:, None, :, None], 0)
        return PromptKV(layers)


class SlotLayer:
    """One layer's slots: [S, K, C, D] keys and values."""

    is_sliding = False
    is_compileable = False

    def __init__(self, keys_RKTD: Tensor, values_RKTD: Tensor, *, num_slots: int, capacity: int) -> None:
        # Zeros and not empty: stale memory may hold NaN, see PromptCache.take.
        self.keys, self.values = (
            torch.zeros((num_slots, x.shape[1], capacity, x.shape[3]), dtype=x.dtype, device=x.device)
            for x in (keys_RKTD, values_RKTD)
        )
        self.flat = [x.view(-1, x.shape[3]) for x in (self.keys, self.values)]


class SlotCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """All layers' slots. Memory is allocated by the first forward, which shows dtype, device and heads of each layer.

    Takes 2 x layers x S x K x C x D numbers. Sliding-window layers keep the whole length too.
    """

    def __init__(self, *, num_slots: int, capacity: int) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)  # never used: `update` appends layers itself
        self._num_slots, self._capacity = num_slots, capacity
        self._num_rows = self._length = 0
        self._positions_R: Tensor | None = None
        self._index: dict[int, Tensor] = {}

    def place(self, positions_R: Tensor, length: int) -> None:
        """The next forward feeds row r one token at `positions_R[r]` and reads the first `length` positions."""
        self._positions_R, self._num_rows, self._length = positions_R, len(positions_R), length
        self._index.clear()

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write this step's keys and values [R, K, 1, D]; give views [R, K, L, D] of all so far."""
        layer = self._layer(layer_idx, key_states, value_states)
        index = self._flat_index(key_states.shape[1])
        layer.flat[0].index_copy_(0, index, key_states.reshape(-1, key_states.shape[3]))
        layer.flat[1].index_copy_(0, index, value_states.reshape(-1, value_states.shape[3]))
        return layer.keys[: self._num_rows, :, : self._length], layer.values[: self._num_rows, :, : self._length]

    def fill(self, slots: Sequence[int], prompts: PromptKV, indices: Sequence[int]) -> None:
        """Copy prompt `indices[i]` into slot `slots[i]`, from position 0."""
        for number, (keys, values) in enumerate(prompts.layers):
            layer = self._layer(number, keys, values)
            to, source = (torch.tensor(x, device=keys.device) for x in (slots, indices))
            layer.keys[:, :, : keys.shape[2]].index_copy_(0, to, keys.index_select(0, source))
            layer.values[:, :, : values.shape[2]].index_copy_(0, to, values.index_select(0, source))

    def move(self, source: int, to: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `to`."""
        for layer in self.layers:
            layer.keys[to, :, :length] = layer.keys[source, :, :length]
            layer.values[to, :, :length] = layer.values[source, :, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot that may hold NaN, which would leak into the next completion placed there."""
        for layer in self.layers:
            layer.keys[slot] = 0
            layer.values[slot] = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._length, 0

    def _layer(self, number: int, keys: Tensor, values: Tensor) -> SlotLayer:
        while len(self.layers) <= number:
            self.layers.append(SlotLayer(keys, values, num_slots=self._num_slots, capacity=self._capacity))
        layer: SlotLayer = self.layers[number]
        return layer

    def _flat_index(self, num_heads: int) -> Tensor:
        """Where this step's states go in `SlotLayer.flat`; the same for all layers with as many heads."""
        if num_heads not in self._index:
            assert self._positions_R is not None, "place comes before each forward"
            rows = torch.arange(self._num_rows * num_heads, device=self._positions_R.device) * self._capacity
            self._index[num_heads] = rows + self._positions_R.repeat_interleave(num_heads)
        return self._index[num_heads]


@dataclass(frozen=True, slots=True)
class DecodeMask:
    """Masks for one token per row at rows' own positions, as the model's layers want them."""

    windows: dict[str, int]
    """Kind of layer -> how many positions it sees, its own included; 0 is all."""

    @classmethod
    def of(cls, config: Any) -> "DecodeMask":
        """Raises InputError for a kind of layer that keeps no keys and values per position."""
        kinds = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None)
        if not kinds:
            kinds = {"full_attention" if window is None else "sliding_attention"}
        if getattr(config, "attention_chunk_size", None) is not None:
            kinds.add("chunked_attention")
        if strange := sorted(kinds - {"full_attention", "sliding_attention"}):
            raise InputError(
                f"TorchEngine: the model has layers of kind {', '.join(strange)}; expected full_attention or "
                "sliding_attention only; use another model or another rollout engine"
            )
        return cls({kind: (window or 0) if kind == "sliding_attention" else 0 for kind in sorted(kinds)})

    def build(self, positions_R: Tensor, length: int, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Additive masks [R, 1, 1, L]: 0 where row r may look, the lowest number of `dtype` elsewhere.

        A dict by kind of layer when there are several kinds, as transformers' models expect.
        """
        seen_L, last_R1 = torch.arange(length, device=positions_R.device), positions_R[:, None]
        masks = {}
        for kind, window in self.windows.items():
            hidden_RL = seen_L > last_R1
            if window:
                hidden_RL |= seen_L <= last_R1 - window
            mask_RL = torch.zeros(hidden_RL.shape, dtype=dtype, device=seen_L.device)
            masks[kind] = mask_RL.masked_fill_(hidden_RL, torch.finfo(dtype).min)[:, None, None, :]
        return masks if len(masks) > 1 else next(iter(masks.values()))


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of one query per row [R, H, 1, D], equal to transformers' `sdpa` without its copies of keys and values.

    Query heads that share a key-value head become that head's queries: [R, K, H/K, D] against [R, K, L, D].
    """
    num_rows, num_heads, num_queries, size = query.shape
    assert num_queries == 1, "grouped_attention is for decoding"
    grouped = query.reshape(num_rows, key.shape[1], num_heads // key.shape[1], size)
    out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(num_rows, 1, num_heads, value.shape[3]), None


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
