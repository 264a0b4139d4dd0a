import pytest
import torch

from codriver.signals.divergence import reverse_kl_logp
from codriver.signals.targets import arithmetic_mean_logp, extrapolated_logp, geometric_mean_logp, veto_logp

INF = float("inf")


def logp(*p):
    return torch.tensor(p, dtype=torch.float64).log()


A, B = logp(0.8, 0.2), logp(0.2, 0.8)


def test_means_equal_the_equations():
    torch.testing.assert_close(
        arithmetic_mean_logp([A, B], [0.25, 0.75]).exp(), torch.tensor([0.35, 0.65], dtype=torch.float64)
    )
    g = torch.tensor([0.8**0.25 * 0.2**0.75, 0.2**0.25 * 0.8**0.75], dtype=torch.float64)
    torch.testing.assert_close(geometric_mean_logp([A, B], [0.25, 0.75]).exp(), g / g.sum())


def test_all_weight_on_one_teacher_is_that_teacher():
    for mean in (geometric_mean_logp, arithmetic_mean_logp):
        torch.testing.assert_close(mean([A, B], [0.0, 1.0]), B)


def test_targets_are_distributions_and_finite_in_logs_at_probability_zero():
    certain = torch.tensor([0.0, -INF], dtype=torch.float64)
    for target in (
        geometric_mean_logp([certain, B], [0.5, 0.5]),
        arithmetic_mean_logp([certain, B], [0.5, 0.5]),
        veto_logp(certain, B, power=1.0),
        extrapolated_logp(certain, B, strength=1.5),
        extrapolated_logp(B, certain, strength=0.5),
    ):
        assert torch.isfinite(target).all()
        torch.testing.assert_close(target.exp().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_the_veto_target_fades_into_the_teacher_and_approaches_the_student():
    torch.testing.assert_close(veto_logp(A, B, power=0.0), B)
    distances = [reverse_kl_logp(A, veto_logp(A, B, power=power)) for power in (0.0, 0.5, 1.0)]
    assert distances[0] > distances[1] > distances[2]
    assert not veto_logp(A.clone().requires_grad_(), B, power=1.0).requires_grad


def test_extrapolation_moves_away_from_the_reference():
    torch.testing.assert_close(extrapolated_logp(A, B, strength=1.0), A)
    assert (
        extrapolated_logp(A, logp(0.5, 0.5), strength=2.0)[0]
        > A[0]
        > extrapolated_logp(A, logp(0.5, 0.5), strength=0.5)[0]
    )


LIVE = A.clone().requires_grad_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: geometric_mean_logp([A, B], [1.0]),
            "geometric_mean_logp: one weight per teacher, got 2 teachers, 1 weights",
        ),
        (lambda: arithmetic_mean_logp([], []), "arithmetic_mean_logp: one weight per teacher"),
        (lambda: geometric_mean_logp([A, B], [0.5, 0.6]), "weights must be >= 0 and sum to 1, got .0.5, 0.6."),
        (lambda: arithmetic_mean_logp([A, B], [-0.5, 1.5]), "weights must be >= 0 and sum to 1"),
        (
            lambda: geometric_mean_logp([A, B[:1]], [0.5, 0.5]),
            "geometric_mean_logp: teacher_0 and teacher_1 must have one shape",
        ),
        (lambda: arithmetic_mean_logp([A, LIVE], [0.5, 0.5]), "arithmetic_mean_logp: teacher_1 carries gradient"),
        (lambda: veto_logp(A, B[:1], power=1.0), "veto_logp: student_logp_V and teacher_logp_V must have one shape"),
        (lambda: veto_logp(A, LIVE, power=1.0), "veto_logp: teacher_logp_V carries gradient"),
        (lambda: veto_logp(A, B, power=-1.0), "veto_logp: the power must be >= 0, got -1.0"),
        (lambda: extrapolated_logp(A, B[:1], strength=1.0), "extrapolated_logp: teacher_logp_V and reference_logp_V"),
        (lambda: extrapolated_logp(A, LIVE, strength=1.0), "extrapolated_logp: reference_logp_V carries gradient"),
        (lambda: extrapolated_logp(A, B, strength=0.0), "extrapolated_logp: strength must be > 0, got 0.0"),
    ],
)
def test_refuses_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
