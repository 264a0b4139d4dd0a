import pytest
import torch

from codriver.signals.sampled import log_ratio_advantage
from codriver.signals.trust_region import (
    acceptance,
    clip_outliers,
    mask_outliers,
    outlier_forward_kl,
    prefix_cap,
    trusted,
)

INF = float("inf")


def uniforms(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_acceptance_is_the_capped_ratio_of_teacher_to_student():
    a = acceptance(torch.tensor([0.8, 0.1]).log(), torch.tensor([0.2, 0.3]).log())
    torch.testing.assert_close(a, torch.tensor([0.25, 1.0]))


def test_acceptance_is_detached_and_finite_for_ruled_out_tokens():
    a = acceptance(torch.tensor([-1.0, -INF, -INF], requires_grad=True), torch.tensor([-INF, -1.0, -INF]))
    assert not a.requires_grad and a.tolist()[1:] == [1.0, 1.0] and 0 <= a[0] < 1e-40


def test_the_stochastic_form_has_the_mean_of_the_expected_form():
    a = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64)
    draws = trusted(a.expand(200_000, 4), uniforms(0, 200_000, 4))
    assert set(draws.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(draws.mean(0), a, atol=5e-3, rtol=0)
    assert (draws[:, 0] == 0).all() and (draws[:, 3] == 1).all()
    assert trusted(torch.zeros(1), torch.zeros(1)) == 0  # a draw of exactly 0 does not trust the impossible


def test_the_draws_belong_to_the_tokens_and_not_to_the_cut_of_the_batch():
    a, u = uniforms(1, 8), uniforms(2, 8)
    assert torch.equal(torch.cat([trusted(a[:3], u[:3]), trusted(a[3:], u[3:])]), trusted(a, u))


def test_the_rules_differ_only_on_outliers():
    A, trust = torch.tensor([-9.0, 9.0, -9.0]), torch.tensor([1.0, 0.0, 0.0])
    assert mask_outliers(A, trust).tolist() == [-9.0, 0.0, 0.0]
    assert clip_outliers(A, trust, bound=2.0).tolist() == [-9.0, 2.0, -2.0]
    torch.testing.assert_close(clip_outliers(A, torch.full((3,), 0.5), bound=2.0), torch.tensor([-5.5, 5.5, -5.5]))


def test_outliers_learn_from_the_teachers_list_and_trusted_tokens_from_the_sample():
    policy, outlier = (
        torch.tensor([1.0, 2.0, 3.0], requires_grad=True),
        torch.tensor([10.0, 20.0, 30.0], requires_grad=True),
    )
    loss = outlier_forward_kl(policy, outlier, torch.tensor([1.0, 0.0, 0.25]))
    assert loss.tolist() == [1.0, 20.0, 0.25 * 3 + 0.75 * 30]
    loss.sum().backward()
    assert policy.grad.tolist() == [1.0, 0.0, 0.25] and outlier.grad.tolist() == [0.0, 1.0, 0.75]


def test_an_infinite_loss_on_the_other_side_does_not_leak():
    loss = outlier_forward_kl(torch.tensor([1.0, INF]), torch.tensor([INF, 2.0]), torch.tensor([1.0, 0.0]))
    assert loss.tolist() == [1.0, 2.0]


def test_trust_never_carries_gradient():
    trust = torch.tensor([0.5], requires_grad=True)
    loss = outlier_forward_kl(torch.ones(1), torch.ones(1), trust)
    assert not loss.requires_grad
    assert not mask_outliers(torch.ones(1, requires_grad=True), trust).requires_grad
    assert not clip_outliers(torch.ones(1, requires_grad=True), trust, bound=1.0).requires_grad


def test_a_student_that_is_the_teacher_is_trusted_everywhere_and_taught_nothing():
    lp = uniforms(3, 9).log()
    assert (acceptance(lp, lp) == 1).all() and (
        mask_outliers(log_ratio_advantage(lp, lp), acceptance(lp, lp)) == 0
    ).all()


def test_the_prefix_cap_falls_along_a_cosine_to_zero_at_the_last_step():
    caps = [prefix_cap(step, num_steps=200, max_length=1000) for step in range(200)]
    assert caps[0] == 1000 and caps[-1] == 0
    assert [prefix_cap(step, num_steps=4, max_length=100) for step in range(4)] == [
        100,
        75,
        25,
        0,
    ]  # cos 60, cos 120 degrees
    assert all(a >= b for a, b in zip(caps, caps[1:], strict=False))
    assert caps[100] == pytest.approx(500, abs=10) and caps[50] == pytest.approx(853, abs=10)
    assert prefix_cap(0, num_steps=1, max_length=1000) == 0  # the only step is the last one


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a, b: acceptance(a, b),
            r"acceptance: student_logp and teacher_logp must have one shape, got \(2,\) and \(3,\)",
        ),
        (lambda a, b: acceptance(a, a.clone().requires_grad_()), "acceptance: teacher_logp carries gradient"),
        (lambda a, b: trusted(a, b), "trusted: acceptance and uniform must have one shape"),
        (lambda a, b: mask_outliers(a, b), "mask_outliers: advantage and trust must have one shape"),
        (lambda a, b: clip_outliers(a, b, bound=1.0), "clip_outliers: advantage and trust must have one shape"),
        (lambda a, b: clip_outliers(a, a, bound=0.0), "clip_outliers: the bound must be > 0, got 0.0"),
        (
            lambda a, b: outlier_forward_kl(a, a, b),
            "outlier_forward_kl: policy_loss and outlier_loss and trust must have one",
        ),
        (
            lambda a, b: prefix_cap(5, num_steps=5, max_length=1),
            "prefix_cap: expected 0 <= step < num_steps, got step 5 of 5",
        ),
    ],
)
def test_refuses_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2), torch.zeros(3))
