import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.signals.reweight import (
    annealed_coefficient,
    distilled_rl_advantage,
    entropy_aware_loss,
    kdrl_loss,
    prefix_weight,
    verifier_signed_advantage,
)

INF = float("inf")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ONES = torch.ones(9)


# ---- Distilled RL


def test_distilled_rl_equals_the_equation_written_out():
    A, lq, lp = torch.full((6,), 2.0, dtype=torch.float64), normal(0, 6), normal(1, 6)
    mask = torch.tensor([1, 1, 0, 1, 1, 0])
    rho = [min(max(math.exp(x), 1 / 3), 3) for x in (lq - lp).clamp(-80, 80).tolist()]
    # log-probs above 0 cannot occur; the function only needs differences
    kept = [r for r, m in zip(rho, mask.tolist(), strict=True) if m]
    geomean = math.prod(kept) ** (1 / len(kept))
    expected = [2 * r / geomean if m else 2.0 for r, m in zip(rho, mask.tolist(), strict=True)]
    torch.testing.assert_close(distilled_rl_advantage(A, lq, lp, mask), torch.tensor(expected, dtype=torch.float64))


def test_it_credits_the_tokens_the_teacher_likes_and_leaves_failures_alone():
    lq, lp, mask = torch.tensor([0.8, 0.2]).log(), torch.tensor([0.4, 0.4]).log(), torch.ones(2)
    right, wrong = (distilled_rl_advantage(torch.full((2,), a), lq, lp, mask) for a in (1.0, -1.0))
    assert right[0] > 1 > right[1] > 0
    assert wrong.tolist() == [-1.0, -1.0]


def test_distilled_rl_is_grpo_when_the_teacher_is_the_student_or_the_bound_is_one():
    A, lp = torch.where(normal(2, 9) > 0, 1.0, -1.0), normal(3, 9)
    assert torch.equal(distilled_rl_advantage(A, lp, lp.clone(), ONES), A)
    torch.testing.assert_close(distilled_rl_advantage(A, normal(4, 9), lp, ONES, bound=1.0).float(), A)


def test_a_group_that_agrees_stays_at_zero():
    assert (distilled_rl_advantage(torch.zeros(9), normal(5, 9), normal(6, 9), ONES) == 0).all()


def test_it_is_normalised_after_clipping_and_per_episode():
    lq = torch.tensor([[9.0, 9.0, -9.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    w = distilled_rl_advantage(torch.ones(2, 3), lq, torch.zeros(2, 3), torch.ones(2, 3))
    g = 3 ** (1 / 3)
    torch.testing.assert_close(w, torch.tensor([[3 / g, 3 / g, 1 / 3 / g], [1, 1, 1]], dtype=torch.float64))


# ---- sign from the verifier


def test_the_teacher_sets_the_size_and_never_the_sign():
    A = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
    gap = torch.tensor([0.1, -9.0, 0.1, -9.0, 5.0])
    value = verifier_signed_advantage(A, gap, torch.zeros(5))
    expected = torch.tensor([math.exp(0.1), 0.8, -math.exp(-0.1), -1.2, 0.0])
    torch.testing.assert_close(value, expected)
    assert (value.sign() == A.sign()).all()
    assert torch.equal(verifier_signed_advantage(A, torch.zeros(5), torch.zeros(5)), A)


# ---- KDRL


def test_kdrl_adds_k2_whose_gradient_is_the_log_ratio():
    policy, logp, lq = normal(7, 5), normal(8, 5).requires_grad_(), normal(9, 5)
    loss = kdrl_loss(policy, logp, lq, coefficient=0.3)
    torch.testing.assert_close(loss, policy + 0.3 * (logp - lq) ** 2 / 2)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logp)[0], 0.3 * (logp.detach() - lq))
    assert torch.equal(kdrl_loss(policy, logp, lq, coefficient=0.0), policy)


def test_kdrl_anneals_linearly_to_its_end():
    values = [annealed_coefficient(s, start=1.0, end=0.2, decrement=0.3) for s in range(5)]
    assert values == pytest.approx([1.0, 0.7, 0.4, 0.2, 0.2])


# ---- prefix weighting


def test_the_weight_falls_with_the_disagreement_before_the_token():
    A, mask = torch.tensor([2.0, -1.0, 7.0, 1.0], dtype=torch.float64), torch.tensor([1, 1, 0, 1])
    w = prefix_weight(A, mask, strength=0.5)
    torch.testing.assert_close(
        w, torch.tensor([1.5, 1 + 0.5 * (1 - 2 / 4), 1.0, 1 + 0.5 * (1 - 3 / 4)], dtype=torch.float64)
    )


def test_without_disagreement_or_strength_all_tokens_weigh_the_same():
    assert (prefix_weight(torch.zeros(4), torch.ones(4), strength=0.5) == 1.5).all()
    assert (prefix_weight(normal(10, 4), torch.ones(4), strength=0.0) == 1.0).all()
    assert (prefix_weight(normal(10, 4), torch.zeros(4)) == 1.0).all()


# ---- EOPD


def test_the_forward_kl_is_added_only_where_the_teacher_is_unsure():
    policy, kl = torch.ones(3, requires_grad=True), torch.full((3,), 5.0, requires_grad=True)
    loss = entropy_aware_loss(policy, kl, torch.tensor([0.79, 0.81, 3.0]), coefficient=2.0)
    assert loss.tolist() == [1.0, 11.0, 11.0]
    loss.sum().backward()
    assert policy.grad.tolist() == [1.0, 1.0, 1.0] and kl.grad.tolist() == [0.0, 2.0, 2.0]


# ---- all


def test_advantages_are_detached_and_finite_for_ruled_out_tokens():
    A = torch.ones(3, requires_grad=True)
    lq, lp = torch.tensor([-INF, 0.0, -1.0]), torch.tensor([0.0, -INF, -1.0], requires_grad=True)
    for value in (
        distilled_rl_advantage(A, lq, lp, torch.ones(3)),
        verifier_signed_advantage(A, lq, lp),
        prefix_weight(A, torch.ones(3)),
    ):
        assert not value.requires_grad and torch.isfinite(value).all()
    loss = kdrl_loss(torch.zeros(3), lp, lq, coefficient=1.0)
    assert torch.isfinite(loss).all() and torch.isfinite(torch.autograd.grad(loss.sum(), lp)[0]).all()


Z3, Z2 = torch.zeros(3), torch.zeros(2)
LIVE = torch.zeros(3, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: distilled_rl_advantage(Z3, Z3, Z2, Z3),
            "distilled_rl_advantage: advantage and teacher_logp and student_logp",
        ),
        (
            lambda: distilled_rl_advantage(Z3, Z3, Z3, Z2),
            "distilled_rl_advantage: advantage and mask must have one shape",
        ),
        (lambda: distilled_rl_advantage(Z3, LIVE, Z3, Z3), "distilled_rl_advantage: teacher_logp carries gradient"),
        (lambda: distilled_rl_advantage(Z3, Z3, Z3, Z3, bound=0.5), "the bound must be >= 1, got 0.5"),
        (lambda: verifier_signed_advantage(Z3, Z2, Z3), "verifier_signed_advantage: advantage and teacher_logp"),
        (lambda: verifier_signed_advantage(Z3, LIVE, Z3), "verifier_signed_advantage: teacher_logp carries gradient"),
        (lambda: verifier_signed_advantage(Z3, Z3, Z3, clip=1.5), r"clip must be in \[0, 1\], got 1.5"),
        (lambda: kdrl_loss(Z2, Z3, Z3, coefficient=1.0), "kdrl_loss: policy_loss and logp must have one shape"),
        (lambda: kdrl_loss(Z3, Z3, LIVE, coefficient=1.0), "kl_estimate: reference_logp carries gradient"),
        (lambda: kdrl_loss(Z3, Z3, Z3, coefficient=-1.0), "kdrl_loss: the coefficient must be >= 0, got -1.0"),
        (lambda: annealed_coefficient(-1), "expected step >= 0 and end <= start, got -1"),
        (lambda: annealed_coefficient(0, start=0.1, end=0.2), "end <= start, got 0, 0.1, 0.2"),
        (lambda: prefix_weight(Z3, Z2), "prefix_weight: advantage and mask must have one shape"),
        (lambda: prefix_weight(Z3, Z3, strength=-1.0), "prefix_weight: the strength must be >= 0, got -1.0"),
        (lambda: entropy_aware_loss(Z3, Z3, Z2), "entropy_aware_loss: policy_loss and forward_kl and teacher_entropy"),
        (lambda: entropy_aware_loss(Z3, Z3, LIVE), "entropy_aware_loss: teacher_entropy carries gradient"),
        (lambda: entropy_aware_loss(Z3, Z3, Z3, coefficient=-1.0), "entropy_aware_loss: the coefficient must be >= 0"),
    ],
)
def test_refuses_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.booleans()), min_size=1, max_size=12), st.floats(1, 5))
def test_distilled_rl_weights_always_have_geometric_mean_one(tokens, bound):
    lq, lp = (torch.tensor([t[i] for t in tokens], dtype=torch.float64) for i in (0, 1))
    mask = torch.tensor([t[2] for t in tokens])
    w = distilled_rl_advantage(torch.ones_like(lq), lq, lp, mask, bound=bound)
    assert abs(w[mask].log().sum()) < 1e-6 and (w[~mask] == 1).all()
    p = prefix_weight(lq - lp, mask)
    assert ((p >= 1) & (p <= 1.5)).all() and (p[mask].diff() <= 1e-12).all()
