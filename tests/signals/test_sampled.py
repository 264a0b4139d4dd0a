import math

import pytest
import torch

from codriver.signals.divergence import reverse_kl
from codriver.signals.sampled import (
    bounded_clip,
    bounded_floor,
    bounded_log,
    bounded_power,
    extrapolated_advantage,
    log_ratio_advantage,
    mixture_weight,
    state_baseline_advantage,
)
from codriver.signals.surrogate import clipped

INF = float("inf")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logp(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


PAIRS = {
    log_ratio_advantage: {},
    mixture_weight: {"teacher_share": 0.2},
    bounded_power: {"power": 0.5},
}


# ---- the log-ratio


def test_is_positive_where_the_teacher_likes_the_token_more():
    A = log_ratio_advantage(logp(0.5, 0.1), logp(0.25, 0.4))
    torch.testing.assert_close(A, torch.tensor([math.log(2), -math.log(4)], dtype=torch.float64))


def test_a_descent_step_on_it_raises_the_token_the_teacher_prefers():
    student = logp(0.25, 0.4).requires_grad_()
    clipped(student, student.detach(), log_ratio_advantage(logp(0.5, 0.1), student)).sum().backward()
    assert student.grad[0] < 0 < student.grad[1]


def test_it_never_carries_gradient_so_teacher_equal_to_student_teaches_nothing():
    student = logp(0.25, 0.4).requires_grad_()
    A = log_ratio_advantage(student.detach(), student)
    assert A.requires_grad is False and (A == 0).all()
    clipped(student, student.detach(), A).sum().backward()
    assert (student.grad == 0).all()


def test_the_clip_bounds_both_sides():
    A = log_ratio_advantage(torch.tensor([-30.0, -1.0, -2.0]), torch.tensor([-1.0, -30.0, -1.0]), clip=5.0)
    assert A.tolist() == [-5.0, 5.0, -1.0]


def test_ruled_out_tokens_count_a_hundred_nats():
    A = log_ratio_advantage(torch.tensor([-INF, -1.0, -INF]), torch.tensor([-1.0, -INF, -INF]))
    assert A.tolist() == [-99.0, 99.0, 0.0]


def test_half_precision_becomes_float32_and_float64_stays():
    half = torch.tensor([-1.0], dtype=torch.bfloat16)
    assert log_ratio_advantage(half, half).dtype == torch.float32
    assert log_ratio_advantage(logp(0.5), logp(0.5)).dtype == torch.float64


@pytest.mark.parametrize("signal", PAIRS, ids=lambda f: f.__name__)
def test_refuses_bad_pairs(signal):
    with pytest.raises(
        ValueError,
        match=rf"{signal.__name__}: teacher_logp and student_logp must have one shape, got \(3,\) and \(2,\)",
    ):
        signal(torch.zeros(3), torch.zeros(2), **PAIRS[signal])
    with pytest.raises(ValueError, match=f"{signal.__name__}: teacher_logp carries gradient"):
        signal(torch.zeros(3, requires_grad=True), torch.zeros(3), **PAIRS[signal])


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_refuses_a_clip_that_is_not_positive(clip):
    with pytest.raises(ValueError, match="the bound must be > 0"):
        log_ratio_advantage(torch.zeros(1), torch.zeros(1), clip=clip)


def test_the_state_baseline_adds_the_kl_back():
    A = state_baseline_advantage(logp(0.5), logp(0.25), torch.tensor([0.3], dtype=torch.float64, requires_grad=True))
    torch.testing.assert_close(A, torch.tensor([math.log(2) + 0.3], dtype=torch.float64))
    assert not A.requires_grad


def test_the_state_baseline_is_zero_on_average_over_tokens():
    z, zt = normal(0, 8), normal(1, 8)
    lp, lq = z.log_softmax(-1), zt.log_softmax(-1)
    A = state_baseline_advantage(lq, lp, reverse_kl(z, zt).expand(8))
    assert abs((lp.exp() * A).sum()) < 1e-12


def test_the_state_baseline_refuses_a_kl_of_another_shape():
    with pytest.raises(ValueError, match=r"state_baseline_advantage: teacher_logp and state_kl must have one shape"):
        state_baseline_advantage(torch.zeros(3), torch.zeros(3), torch.zeros(1))


def test_extrapolation_goes_beyond_the_teacher_as_seen_from_the_reference():
    A = extrapolated_advantage(logp(0.5), logp(0.4), logp(0.25), strength=1.5)
    expected = 1.5 * (math.log(0.5) - math.log(0.25)) - (math.log(0.4) - math.log(0.25))
    torch.testing.assert_close(A, torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize(
    ("which", "message"), [(0, "teacher_logp carries"), (2, "teacher_logp carries"), (3, "strength must be > 0")]
)
def test_extrapolation_refuses_bad_input(which, message):
    tensors = [torch.zeros(1, requires_grad=i == which) for i in range(3)]
    with pytest.raises(ValueError, match=f"extrapolated_advantage: {message}"):
        extrapolated_advantage(*tensors, strength=0.0 if which == 3 else 1.0)


# ---- sampling from a mixture, bounded signals


def test_the_mixture_weight_restores_the_students_expectation():
    lp, lq = normal(9, 8).log_softmax(-1), normal(10, 8).log_softmax(-1)
    mixture = 0.2 * lq.exp() + 0.8 * lp.exp()
    w = mixture_weight(lq, lp, teacher_share=0.2)
    f = normal(11, 8)
    torch.testing.assert_close((mixture * w * f).sum(), (lp.exp() * f).sum())
    assert (w <= 1 / 0.8).all()
    torch.testing.assert_close(mixture_weight(lq, lp, teacher_share=0.0), torch.ones(8, dtype=torch.float64))


def test_the_mixture_weight_is_finite_for_a_token_only_the_teacher_would_say():
    assert mixture_weight(torch.tensor([0.0]), torch.tensor([-INF]), teacher_share=0.2).item() < 1e-20


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match=r"teacher_share must be in \[0, 1\)"):
        mixture_weight(torch.zeros(1), torch.zeros(1), teacher_share=share)


def test_the_log_bound_keeps_sign_and_order_and_is_the_identity_near_zero():
    A = torch.tensor([-50.0, -1.0, 0.0, 1e-4, 3.0], dtype=torch.float64)
    bounded = bounded_log(A)
    assert (bounded.sign() == A.sign()).all() and (bounded.diff() > 0).all()
    torch.testing.assert_close(
        bounded,
        torch.tensor([-math.log(51), -math.log(2), 0, 1e-4, math.log(4)], dtype=torch.float64),
        atol=1e-7,
        rtol=0,
    )


def test_the_power_signal_is_bounded_and_tends_to_the_log_ratio():
    lq, lp = logp(0.3, 1e-30, 1.0), logp(0.6, 1.0, 1e-30)
    torch.testing.assert_close(bounded_power(lq, lp, power=1.0), torch.tensor([-0.3, -1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(bounded_power(lq, lp, power=1e-9) / 1e-9, log_ratio_advantage(lq, lp), atol=1e-5, rtol=0)


def test_the_floor_only_bounds_from_below():
    A = bounded_floor(torch.tensor([-30.0, -0.1, 40.0]), mixing=0.17)
    torch.testing.assert_close(A, torch.tensor([math.log(0.17 / 0.83), -0.1, 40.0]))


def test_bounded_signals_are_detached():
    A = torch.ones(2, requires_grad=True)
    assert not any(x.requires_grad for x in (bounded_clip(A, bound=1.0), bounded_log(A), bounded_floor(A, mixing=0.5)))
    assert not bounded_power(torch.zeros(2), A, power=1.0).requires_grad
    assert not mixture_weight(torch.zeros(2), A, teacher_share=0.1).requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A: bounded_clip(A, bound=0.0), "bounded_clip: the bound must be > 0, got 0.0"),
        (lambda A: bounded_power(A, A, power=0.0), "bounded_power: the power must be > 0, got 0.0"),
        (lambda A: bounded_floor(A, mixing=1.0), r"bounded_floor: mixing must be in \(0, 1\), got 1.0"),
    ],
)
def test_bounds_outside_their_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(1))
