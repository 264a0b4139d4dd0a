"""A batch of rows is its rows, for every function whose last axis has a meaning."""

import pytest
import torch

from codriver.signals.agreement import window_minimum, windowed_kl
from codriver.signals.divergence import cross_entropy, entropy, jensen_shannon, log_probs, reverse_kl
from codriver.signals.reweight import distilled_rl_advantage, prefix_weight
from codriver.signals.sampled import discounted, long_part
from codriver.signals.support import (
    gather_logp,
    overlap,
    support_cross_entropy,
    support_forward_kl,
    support_mass,
    support_reverse_kl,
    truncated_forward_kl,
    union_ids,
    with_sampled_ids,
)
from codriver.signals.surrogate import importance_weight, sequence_ratio
from codriver.signals.targets import arithmetic_mean_logp, extrapolated_logp, geometric_mean_logp, veto_logp

SHAPE = (3, 3)  # square: a sum over the wrong axis has the right shape


def logp(seed):
    return torch.randn(*SHAPE, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)


A, B = logp(0), logp(1)
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 1]]).bool()
IDS, OTHER = torch.tensor([[0, 5, -1], [7, 0, 2], [9, 9, 3]]), torch.tensor([[5, 1, 0], [2, 7, -1], [0, 1, 9]])
ROWS = {
    "log_probs": lambda i: log_probs(A[i]),
    "entropy": lambda i: entropy(A[i]),
    "reverse_kl": lambda i: reverse_kl(A[i], B[i]),
    "jensen_shannon": lambda i: jensen_shannon(A[i], B[i], beta=0.3),
    "cross_entropy": lambda i: cross_entropy(A[i], B[i]),
    "support_mass": lambda i: support_mass(A[i] - 1),
    "support_reverse_kl": lambda i: support_reverse_kl(A[i] - 1, B[i] - 1),
    "renormalize": lambda i: support_reverse_kl(A[i] - 1, B[i] - 1, remainder="renormalize"),
    "generalized": lambda i: support_forward_kl(A[i] - 1, B[i] - 1, remainder="generalized"),
    "stop_gradient": lambda i: support_forward_kl(A[i] - 1, B[i] - 1, remainder="stop_gradient"),
    "support_cross_entropy": lambda i: support_cross_entropy(A[i], B[i]),
    "truncated_forward_kl": lambda i: truncated_forward_kl(A[i], B[i]),
    "geometric": lambda i: geometric_mean_logp([A[i], B[i]], [0.3, 0.7]),
    "arithmetic": lambda i: arithmetic_mean_logp([A[i], B[i]], [0.3, 0.7]),
    "veto": lambda i: veto_logp(A[i], B[i], power=0.5),
    "extrapolated": lambda i: extrapolated_logp(A[i], B[i], strength=2.0),
    "prefix_weight": lambda i: prefix_weight(A[i], MASK[i]),
    "distilled_rl": lambda i: distilled_rl_advantage(A[i].abs(), A[i], B[i], MASK[i]),
    "discounted": lambda i: discounted(A[i], MASK[i], discount=0.5, length_normalised=True),
    "long_part": lambda i: long_part(A[i], MASK[i], discount=0.5),
    "sequence_ratio": lambda i: sequence_ratio(A[i], B[i], MASK[i]),
    "sequence_truncate": lambda i: importance_weight(A[i], B[i], mode="sequence_truncate", mask=MASK[i]),
    "geometric_mask": lambda i: importance_weight(A[i], B[i], mode="geometric_mask", low=0.9, mask=MASK[i]),
    "windowed_kl": lambda i: windowed_kl(A[i], 2),
    "union_ids": lambda i: union_ids(IDS[i], OTHER[i]),
    "overlap": lambda i: overlap(IDS[i], OTHER[i]),
    "gather_logp": lambda i: gather_logp(A[i], IDS[i].clamp(max=2)),
    "with_sampled_ids": lambda i: with_sampled_ids(IDS[i], OTHER[i][..., 0]),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_batch_is_its_rows(name):
    form = ROWS[name]
    torch.testing.assert_close(form(slice(None)), torch.stack([form(i) for i in range(3)]), equal_nan=True)


def test_the_lowest_window_of_each_rollout():
    kl, length = A.abs(), torch.tensor([3, 1, 2])
    found = window_minimum(kl, length, window=2).tolist()
    assert found == [float(windowed_kl(kl[0], 2).min()), float("inf"), float(kl[2, :2].mean())]


def test_an_overlap_knows_token_zero_and_counts_the_first_list_alone():
    assert float(overlap(torch.tensor([0, 4]), torch.tensor([0, 1, 2]))) == 0.5
    assert float(overlap(torch.tensor([-1, -1]), torch.tensor([-1, 3]))) == 0.0


def test_a_token_that_repeats_keeps_its_first_slot():
    found = union_ids(torch.tensor([3, 0, 3, 1]), torch.tensor([1, 2, 0]))
    assert found.tolist() == [3, 0, -1, 1, -1, 2, -1]
    many = torch.arange(40) % 7
    first = [i if i < 7 else -1 for i in range(80)]
    assert union_ids(many, many).tolist() == [t % 7 if t >= 0 else -1 for t in first]


def test_episodes_packed_along_an_axis_are_summed_one_by_one():
    packed, prox = A[:2].reshape(-1), B[:2].reshape(-1)
    episode, mask = torch.tensor([5, 5, 5, 2, 2, 2]), torch.ones(6, dtype=torch.bool)
    alone = sequence_ratio(A[:2], B[:2], torch.ones(2, 3, dtype=torch.bool)).reshape(-1)
    torch.testing.assert_close(sequence_ratio(packed, prox, mask, episode=episode), alone)
    options = {"mode": "sequence_truncate", "high": 100.0}
    alone = importance_weight(A[:2], B[:2], **options).reshape(-1)
    torch.testing.assert_close(importance_weight(packed, prox, episode=episode, **options), alone)
    with pytest.raises(ValueError, match="episode ids"):
        sequence_ratio(packed, prox, mask, episode=episode[:3])
