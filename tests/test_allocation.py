import numpy as np
import pytest

from codriver.allocation import Share, allocate
from codriver.episode import ZERO_REASONS
from tests.records import an_episode, scored


def lengths(*ns, **changes):
    return [scored(an_episode(sampled=n, seed=i, id=f"0/{i}/0"), **changes) for i, n in enumerate(ns)]


def test_token_mean_gives_every_token_of_the_batch_one_share():
    out = allocate(lengths(2, 6), {"outcome": Share(coef=4.0)})
    assert [e.weights["outcome"].weight.tolist() for e in out] == [[0.5] * 2, [0.5] * 6]


def test_sequence_mean_gives_every_completion_one_share():
    out = allocate(lengths(2, 8), {"outcome": Share(coef=1.0, aggregation="sequence_mean")})
    assert [e.weights["outcome"].weight[0] for e in out] == [1 / 4, 1 / 16]


def test_constant_divides_by_completions_and_the_longest_length():
    out = allocate(lengths(2, 8), {"outcome": Share(coef=1.0, aggregation="constant", constant_length=10)})
    assert {float(e.weights["outcome"].weight[0]) for e in out} == {np.float32(1 / 20)}


def test_unmeasured_episodes_leave_numerator_and_denominator_and_say_why():
    batch = [*lengths(3), scored(an_episode(sampled=5), advantage=0.0, outcome_reason="invalid")]
    first, second = allocate(batch, {"outcome": Share(coef=1.0)})
    assert first.weights["outcome"].weight.tolist() == pytest.approx([1 / 3] * 3)
    assert not second.weights["outcome"].weight.any()
    assert {ZERO_REASONS[c] for c in second.weights["outcome"].zero_reason} == {"invalid"}


def test_a_group_that_agrees_has_no_outcome_weight_but_stays_in_the_count_and_keeps_its_teacher():
    agreed = scored(an_episode(sampled=3), advantage=0.0, outcome_reason="group_agrees", teacher_logp=[-1, -1, -1])
    first, second = allocate([*lengths(3), agreed], {"outcome": Share(coef=1.0), "distill": Share(coef=1.0)})
    assert first.weights["outcome"].weight.tolist() == pytest.approx([1 / 6] * 3)
    assert not second.weights["outcome"].weight.any() and second.weights["distill"].weight.tolist() == pytest.approx(
        [1 / 3] * 3
    )
    assert not first.weights["distill"].weight.any()


def test_a_signal_nobody_carries_and_an_empty_completion_give_zeros_not_nan():
    (only,) = allocate([scored(an_episode(sampled=0))], {"outcome": Share(coef=1.0), "distill": Share(coef=1.0)})
    assert len(only.weights["outcome"].weight) == len(only.weights["distill"].weight) == 0
    (none,) = allocate(lengths(4), {"distill": Share(coef=1.0)})
    assert none.weights["distill"].weight.tolist() == [0.0] * 4


def test_bad_shares_are_named():
    with pytest.raises(ValueError, match="no signal 'outcom'; known: outcome"):
        allocate(lengths(1), {"outcom": Share(coef=1.0)})
    with pytest.raises(ValueError, match="constant needs constant_length"):
        Share(coef=1.0, aggregation="constant")
