import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.signals.aggregation import constant_weight, sequence_mean_weight, token_mean_weight
from codriver.signals.outcome import STD_EPSILON, group_advantage, overlong_mask, overlong_penalty

SCALES, BASELINES = ("std", "none", "batch"), ("mean", "leave_one_out")


def std(values):
    mean = sum(values) / max(len(values), 1)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def slow(rewards, groups, scale="std", baseline="mean", valid=None):
    valid = valid or [True] * len(rewards)
    batch = std([r for r, ok in zip(rewards, valid, strict=True) if ok])
    out = []
    for i, (r, g) in enumerate(zip(rewards, groups, strict=True)):
        members = [x for x, h, ok in zip(rewards, groups, valid, strict=True) if h == g and ok]
        others = [
            x for j, (x, h, ok) in enumerate(zip(rewards, groups, valid, strict=True)) if h == g and ok and j != i
        ]
        if not valid[i] or len(members) < 2 or max(members) == min(members):
            out.append(0.0)
            continue
        base = sum(members) / len(members) if baseline == "mean" else sum(others) / len(others)
        out.append((r - base) / {"std": std(members) + STD_EPSILON, "none": 1.0, "batch": batch + STD_EPSILON}[scale])
    return out


def advantage(rewards, groups, dtype=torch.float64, **options):
    if options.get("valid") is not None:
        options["valid"] = torch.tensor(options["valid"])
    return group_advantage(torch.tensor(rewards, dtype=dtype), torch.tensor(groups), **options)


def test_hand_values_of_each_scale_and_baseline():
    rewards, groups = [1.0, 0.0, 0.0, 0.0, 2.0, 0.0], [5, 5, 5, 5, 2, 2]  # std .5 and sqrt 2
    none = torch.tensor([0.75, -0.25, -0.25, -0.25, 1.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(advantage(rewards, groups, scale="none"), none)
    torch.testing.assert_close(
        advantage(rewards, groups),
        none / torch.tensor([0.5] * 4 + [math.sqrt(2)] * 2, dtype=torch.float64),
        atol=1e-5,
        rtol=0,
    )
    loo = torch.tensor([1.0, -1 / 3, -1 / 3, -1 / 3, 2.0, -2.0], dtype=torch.float64)
    torch.testing.assert_close(advantage(rewards, groups, scale="none", baseline="leave_one_out"), loo)
    torch.testing.assert_close(advantage(rewards, groups, scale="batch"), none / std(rewards), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_equals_the_equation_written_out(scale, baseline):
    g = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 3, (40,), generator=g).double()
    groups, valid = torch.randint(-3, 4, (40,), generator=g), torch.rand(40, generator=g) > 0.3
    expected = slow(rewards.tolist(), groups.tolist(), scale, baseline, valid.tolist())
    value = group_advantage(rewards, groups, scale=scale, baseline=baseline, valid=valid)
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64))


def test_the_better_episode_gets_the_positive_sign():
    A = advantage([1.0, 0.0], [0, 0])
    assert A[0] > 0 > A[1]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_a_group_that_agrees_gets_exactly_zero(scale, baseline):
    """0.95 in float32 has a mean that rounds away from it; divided by a tiny std that would be a huge advantage."""
    for value in (0.95, 0.1, -7.3, 1e6, 1e-9, 0.0):
        for n in (2, 3, 7, 8):
            A = advantage(
                [value] * n + [0.0, 1.0], [0] * n + [1, 1], dtype=torch.float32, scale=scale, baseline=baseline
            )
            assert (A[:n] == 0).all() and (A[n:] != 0).all()


def test_rewards_that_differ_by_float_noise_count_as_equal():
    a = torch.tensor(0.1) + torch.tensor(0.2) + torch.tensor(0.65)
    b = torch.tensor(0.65) + torch.tensor(0.2) + torch.tensor(0.1)
    noisy = torch.stack([a, b, torch.nextafter(b, torch.tensor(9.0)), torch.nextafter(a, torch.tensor(0.0))])
    assert (group_advantage(noisy, torch.zeros(4, dtype=torch.int64)) == 0).all()


def test_a_small_but_real_difference_still_counts():
    assert advantage([0.95, 0.951], [0, 0], dtype=torch.float32)[1] > 0.5


def test_a_single_loser_keeps_its_group_alive():
    A = advantage([0.0] + [0.95] * 7, [0] * 8, dtype=torch.float32)
    assert A[0] < -2 and (A[1:] > 0).all()


def test_uneven_groups_are_not_normalised_over_the_batch():
    """Groups of 4, 3 and 4: the fives agree and get 0, whatever happens in the other groups."""
    A = advantage([1, 1, 0, 0, 5, 5, 5, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    assert (A[4:7] == 0).all()
    torch.testing.assert_close(A[:4], advantage([1, 1, 0, 0], [9] * 4))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_a_group_of_one_gets_zero(scale, baseline):
    A = advantage([3.0, 1.0, 0.0], [0, 1, 1], scale=scale, baseline=baseline)
    assert A[0] == 0 and torch.isfinite(A).all()
    assert advantage([3.0], [0], scale=scale, baseline=baseline).tolist() == [0.0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", BASELINES)
def test_an_invalid_member_is_in_no_mean_and_no_std(scale, baseline):
    options = {"scale": scale, "baseline": baseline}
    A = advantage([1.0, float("nan"), 0.0, 0.0, 99.0], [0] * 5, valid=[True, False, True, True, False], **options)
    assert A[1] == 0 and A[4] == 0
    torch.testing.assert_close(A[[0, 2, 3]], advantage([1.0, 0.0, 0.0], [0] * 3, **options))
    alone = advantage([1.0, 0.0], [0, 0], valid=[True, False], **options)
    assert alone.tolist() == [0.0, 0.0]
    assert (advantage([1.0, 0.0], [0, 0], valid=[False, False], **options) == 0).all()


def test_an_invalid_member_does_not_make_an_agreeing_group_disagree():
    assert (advantage([1.0, 1.0, 0.0], [0, 0, 0], valid=[True, True, False]) == 0).all()
    noisy = advantage([0.95] * 7 + [0.0], [0] * 8, dtype=torch.float32, valid=[True] * 7 + [False])
    assert (noisy == 0).all()


def test_the_order_of_the_episodes_does_not_matter():
    rewards, groups = [1.0, 0.0, 3.0, 0.5, 0.0], [4, 4, -2, -2, 4]
    order = torch.tensor([3, 0, 4, 2, 1])
    shuffled = group_advantage(torch.tensor(rewards)[order], torch.tensor(groups)[order])
    torch.testing.assert_close(shuffled, advantage(rewards, groups, dtype=torch.float32)[order])


def test_an_empty_batch_gives_an_empty_result():
    assert group_advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64), scale="batch").shape == (0,)


def test_it_never_carries_gradient_and_takes_any_number_type():
    assert not group_advantage(torch.rand(4, requires_grad=True), torch.zeros(4, dtype=torch.int64)).requires_grad
    groups = torch.zeros(2, dtype=torch.int64)
    assert group_advantage(torch.tensor([1, 0]), groups).dtype == torch.float32
    assert group_advantage(torch.tensor([1.0, 0.0], dtype=torch.bfloat16), groups).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: advantage([1.0, 2.0], [0]),
            r"group_advantage: reward_E and group_E must have one shape, got \(2,\) and \(1,\)",
        ),
        (lambda: advantage([1.0], [0], valid=[True, True]), "group_advantage: reward_E and valid must have one shape"),
        (lambda: advantage([1.0], [0], scale="range"), "scale must be one of std, none, batch; got 'range'"),
        (lambda: advantage([1.0], [0], baseline="median"), "baseline must be one of mean, leave_one_out; got 'median'"),
        (
            lambda: advantage([1.0, float("nan"), float("inf")], [0] * 3),
            r"must be finite, got non-finite ones at \[1, 2\]",
        ),
        (
            lambda: overlong_penalty(torch.ones(1), max_length=5, buffer=0),
            "expected 0 < buffer <= max_length, got 0 and 5",
        ),
        (
            lambda: overlong_penalty(torch.ones(1), max_length=5, buffer=6),
            "expected 0 < buffer <= max_length, got 6 and 5",
        ),
        (lambda: overlong_mask(torch.ones(1), torch.ones(2), max_length=5), "overlong_mask: length_E and stopped_E"),
        (lambda: constant_weight(torch.ones(1), divisor=0), "constant_weight: the divisor must be > 0, got 0"),
    ],
)
def test_refuses_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.95, 1.0]), st.integers(0, 3), st.booleans()), min_size=1, max_size=16
    )
)
def test_properties_hold_for_any_batch(members):
    rewards, groups, valid = ([m[i] for m in members] for i in range(3))
    for scale in SCALES:
        A = advantage(rewards, groups, scale=scale, valid=valid)
        torch.testing.assert_close(A, torch.tensor(slow(rewards, groups, scale, "mean", valid), dtype=torch.float64))
        for g in set(groups):
            assert abs(sum(a for a, h in zip(A.tolist(), groups, strict=True) if h == g)) < 1e-6
    shifted = advantage([2 * r + 1 for r in rewards], groups, valid=valid)
    torch.testing.assert_close(shifted, advantage(rewards, groups, valid=valid), atol=1e-4, rtol=1e-4)


# ---- length


def test_the_overlong_penalty_starts_at_the_buffer_and_ends_at_the_limit():
    L = torch.tensor([0, 15, 16, 20, 21, 1000])
    torch.testing.assert_close(
        overlong_penalty(L, max_length=20, buffer=5), torch.tensor([0.0, 0.0, -0.2, -1.0, -1.0, -1.0])
    )


def test_the_overlong_mask_keeps_an_episode_that_stopped_at_the_limit():
    keep = overlong_mask(torch.tensor([20, 20, 19, 25]), torch.tensor([True, False, False, False]), max_length=20)
    assert keep.tolist() == [True, False, True, False]


LENGTHS = torch.tensor([3, 0, 5, 1])


def loss(weight_E, length_E=LENGTHS):
    """Sum of weight x term with a term of e + 1 for every token of episode e."""
    return (weight_E * length_E * torch.arange(1.0, len(length_E) + 1)).sum()


def test_each_aggregation_is_the_mean_it_is_named_after():
    torch.testing.assert_close(loss(token_mean_weight(LENGTHS)), torch.tensor((3 * 1 + 5 * 3 + 1 * 4) / 9))
    torch.testing.assert_close(loss(sequence_mean_weight(LENGTHS)), torch.tensor((1 + 3 + 4) / 3))
    torch.testing.assert_close(
        loss(constant_weight(LENGTHS, divisor=8)), torch.tensor((3 * 1 + 5 * 3 + 1 * 4) / (3 * 8))
    )


AGGREGATIONS = [token_mean_weight, sequence_mean_weight, lambda L: constant_weight(L, divisor=8)]


@pytest.mark.parametrize("weight", AGGREGATIONS)
def test_an_empty_batch_weighs_nothing_and_empty_episodes_change_nothing(weight):
    assert (weight(torch.zeros(3)) == 0).all()
    assert weight(torch.zeros(0)).shape == (0,)
    padded = weight(torch.cat([LENGTHS, torch.zeros(5, dtype=torch.int64)]))
    torch.testing.assert_close(padded[:4], weight(LENGTHS))
    assert (padded[4:] == 0).all()


@pytest.mark.parametrize("weight", AGGREGATIONS)
def test_micro_batches_and_ranks_sum_to_the_whole_batch(weight):
    """The weights are of the whole batch, so any cut of it sums to the same loss."""
    w = weight(LENGTHS)
    pieces = [loss(w[i : i + 1], LENGTHS[i : i + 1]) * (i + 1) for i in range(4)]
    torch.testing.assert_close(torch.stack(pieces).sum(), loss(w))
