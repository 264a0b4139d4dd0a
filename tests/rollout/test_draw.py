"""Draws against hand values, against the distribution they claim, and at the edges."""

import numpy as np
import pytest
import torch
from torch import Tensor

from codriver.rollout.draw import UNIFORM_BLOCK, Drawn, Truncation, draw_tokens, uniforms
from codriver.rollout.rows import StopStrings

P = [0.1, 0.4, 0.2, 0.2, 0.1]


def logits_of(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log().float()


def draw(logits: Tensor, u: float | list[float], *, temperature: float = 1.0, top_k=0, top_p=1.0, min_p=0.0) -> Drawn:
    rows = len(logits)
    us = torch.tensor([u] * rows if isinstance(u, float) else u, dtype=torch.float64)
    truncation = Truncation(
        torch.full((rows,), top_k), torch.full((rows,), top_p).double(), torch.full((rows,), min_p).double()
    )
    return draw_tokens(logits, us, torch.full((rows,), temperature), truncation)


def support(**truncation) -> dict[int, float]:
    """Every token that can be drawn, with the probability its log-prob claims."""
    grid = torch.linspace(0, 1 - 2**-30, 2001, dtype=torch.float64).tolist()
    drawn = draw(logits_of(P).expand(len(grid), -1), grid, **truncation)
    return {int(t): round(float(p), 4) for t, p in zip(drawn.token_ids, drawn.logp.exp(), strict=True)}


def test_without_truncation_every_token_has_its_own_probability_and_the_kept_mass_is_exactly_one():
    assert support() == {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.2, 4: 0.1}
    assert draw(logits_of(P), 0.5).kept_logp.item() == 0.0


def test_top_k_keeps_exactly_k_and_the_lower_id_of_a_tie():
    assert support(top_k=2) == {1: 0.6667, 2: 0.3333}
    assert draw(logits_of(P), 0.5, top_k=2).kept_logp.item() == pytest.approx(np.log(0.6))


def test_top_p_keeps_the_fewest_likely_tokens_that_reach_p():
    assert support(top_p=0.5) == {1: 0.6667, 2: 0.3333}
    assert support(top_p=0.7) == {1: 0.5, 2: 0.25, 3: 0.25}
    assert support(top_p=1e-9) == {1: 1.0}


def test_min_p_drops_tokens_far_below_the_most_likely_one():
    assert support(min_p=0.3) == {1: 0.5, 2: 0.25, 3: 0.25}
    assert support(min_p=0.9) == {1: 1.0}


def test_top_p_counts_the_mass_that_top_k_left_and_min_p_comes_last():
    # top-k 2 leaves 2/3 and 1/3, so 0.65 of it is reached by the first alone; of the whole it would take two.
    assert support(top_k=2, top_p=0.65) == {1: 1.0}
    assert support(top_k=4, top_p=0.95, min_p=0.45) == {1: 0.5, 2: 0.25, 3: 0.25}


def test_truncation_acts_on_the_distribution_at_the_temperature():
    # At temperature 0.5 probabilities are proportional to p squared: 1 16 4 4 1 of 26.
    drawn = draw(logits_of(P), 0.0, temperature=0.5, top_k=1)
    assert drawn.kept_logp.item() == pytest.approx(np.log(16 / 26))
    assert drawn.logp.item() == pytest.approx(0.0, abs=1e-6)


def test_log_prob_and_kept_mass_add_up_to_the_log_prob_under_the_whole_distribution():
    torch.manual_seed(0)
    logits, us = torch.randn(64, 50) * 3, torch.rand(64).tolist()
    drawn = draw(logits, us, temperature=0.7, top_k=20, top_p=0.8, min_p=0.05)
    whole = torch.log_softmax(logits / 0.7, -1).gather(-1, drawn.token_ids[:, None])[:, 0]
    torch.testing.assert_close(drawn.logp + drawn.kept_logp, whole)
    assert (drawn.kept_logp < 0).all() and (drawn.logp <= 1e-6).all()


def test_greedy_takes_the_most_likely_token_at_temperature_one_and_ignores_truncation():
    drawn = draw(logits_of(P, P), 0.99, temperature=0.0, top_k=1)
    assert drawn.token_ids.tolist() == [1, 1]
    assert drawn.logp.exp().tolist() == pytest.approx([0.4, 0.4])
    assert drawn.kept_logp.tolist() == [0.0, 0.0]


def test_rows_with_and_without_truncation_do_not_disturb_each_other():
    truncation = Truncation(torch.tensor([0, 1]), torch.ones(2).double(), torch.zeros(2).double())
    drawn = draw_tokens(logits_of(P, P), torch.tensor([0.95, 0.95]).double(), torch.ones(2), truncation)
    assert drawn.token_ids.tolist() == [4, 1] and drawn.kept_logp[0] == 0.0


@pytest.mark.parametrize("truncation", [{}, {"top_k": 3}, {"top_p": 0.75}, {"min_p": 0.4}])
def test_frequencies_follow_the_distribution(truncation):
    num = 20_000
    us = np.random.Generator(np.random.Philox(key=7)).random(num).tolist()
    drawn = draw(logits_of(P).expand(num, -1), us, temperature=1.3, **truncation)
    ids, counts = drawn.token_ids.unique(return_counts=True)
    expected = torch.stack([drawn.logp[drawn.token_ids == i][0].exp() for i in ids]) * num
    assert expected.sum().item() == pytest.approx(num, rel=1e-4)
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 18.5  # 0.1 percent of samples of 4 degrees of freedom exceed it


def test_a_large_vocabulary_keeps_its_far_end():
    size = 150_000
    logits = torch.zeros(3, size)
    drawn = draw_tokens(logits, torch.tensor([0.0, 0.5, 1 - 2**-52]).double(), torch.ones(3))
    assert drawn.token_ids[0] == 0 and drawn.token_ids[2] == size - 1
    assert abs(int(drawn.token_ids[1]) - size // 2) <= 1


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-float("inf"), 0.0, -float("inf"), 0.0, -float("inf")]] * 3)
    drawn = draw(logits, [0.0, 0.5, 1 - 2**-52])
    assert drawn.token_ids.tolist() == [1, 3, 3] and torch.isfinite(drawn.logp).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("truncation", [{}, {"top_k": 2}, {"top_p": 0.5}])
def test_a_row_that_is_not_finite_says_so_and_leaves_the_others_alone(bad, truncation):
    logits = logits_of(P, P)
    logits[0, 2] = bad
    drawn = draw(logits, 0.3, **truncation)
    assert (
        torch.isfinite(drawn.logp).tolist() == [False, True]
        and drawn.token_ids[1] == draw(logits_of(P), 0.3, **truncation).token_ids[0]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_logits_at_a_tiny_temperature_stay_finite(dtype):
    drawn = draw(torch.tensor([[1e4, 2e4, 100.0]], dtype=dtype), 0.5, temperature=1e-38)
    assert drawn.token_ids.item() == 1 and drawn.logp.item() == 0.0


def test_uniforms_depend_on_seed_and_block_only_and_do_not_repeat():
    assert np.array_equal(uniforms(5, 2), uniforms(5, 2))
    blocks = np.concatenate([uniforms(seed, block) for seed in (0, 5, -1) for block in (0, 1, 2)])
    assert len(np.unique(blocks)) == 9 * UNIFORM_BLOCK
    assert 0 <= blocks.min() and blocks.max() < 1 and abs(blocks.mean() - 0.5) < 0.03


TEXT = {0: "a", 1: "<", 2: "/an", 3: "swer", 4: "> b", 5: "", 6: "\n\n"}


def find(ids: list[int], *strings: str) -> str:
    return StopStrings(lambda ids: "".join(TEXT[i] for i in ids)).found(np.array(ids), strings)


def test_a_stop_string_is_found_across_and_inside_tokens_by_the_token_that_completes_it():
    assert find([0, 1, 2, 3], "</answer>") == ""
    assert find([0, 1, 2, 3, 4], "</answer>") == "</answer>"
    assert find([0, 6], "\n") == "\n"
    assert find([0, 5], "a") == ""


def test_of_several_stop_strings_the_first_to_begin_wins_then_the_longer():
    assert find([0, 1, 2, 3, 4], "> b", "</answer>") == "</answer>"
    assert find([0, 6], "\n", "\n\n") == "\n\n"


def test_a_stop_string_is_found_when_its_characters_are_split_over_byte_tokens():
    def decode(ids):
        return bytes(ids).decode(errors="replace")

    stops, text = StopStrings(decode), list("x é→".encode())
    assert [stops.found(np.array(text[: n + 1]), ("é→",)) for n in range(len(text))] == [""] * (len(text) - 1) + ["é→"]


def test_only_a_short_tail_is_decoded():
    seen = []
    stops = StopStrings(lambda ids: seen.append(len(ids)) or "x" * len(ids))
    stops.found(np.zeros(5000, np.int64), ("yx",))
    assert max(seen) < 10
