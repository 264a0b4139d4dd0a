import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.signals.reference import KINDS, adapted_coefficient, kl_estimate

INF = float("inf")


def loss_and_gradient(kind, logp, reference_logp):
    logp = torch.as_tensor(logp).clone().requires_grad_()
    loss = kl_estimate(logp, torch.as_tensor(reference_logp), kind=kind)
    return loss.detach(), torch.autograd.grad(loss.sum(), logp)[0]


@pytest.mark.parametrize("p", [0.5, 0.01, 1.0])
@pytest.mark.parametrize("q", [0.25, 0.9])
def test_equals_the_equations_written_out(p, q):
    logp, ref, c = torch.tensor([p]).log(), torch.tensor([q]).log(), math.log(p / q)
    expected = {"k1": c, "k2": c * c / 2, "k3": q / p - 1 + c}
    for kind in KINDS:
        torch.testing.assert_close(
            kl_estimate(logp, ref, kind=kind), torch.tensor([expected[kind]]), atol=1e-4, rtol=1e-4
        )


def test_a_step_down_on_k2_or_k3_brings_the_student_back_to_the_reference():
    for kind in ("k2", "k3"):
        _, g = loss_and_gradient(kind, torch.tensor([-1.0, -3.0]), torch.tensor([-2.0, -2.0]))
        assert g[1] < 0 < g[0]


def test_the_gradients_are_the_log_ratio_and_one_minus_the_ratio():
    logp, ref = torch.tensor([-1.0, -3.0, -2.5]), torch.tensor([-2.0, -2.0, -2.5])
    torch.testing.assert_close(loss_and_gradient("k2", logp, ref)[1], logp - ref)
    torch.testing.assert_close(loss_and_gradient("k3", logp, ref)[1], 1 - (ref - logp).exp())


def test_two_references_give_two_gradients():
    """A back-propagated k1 would give the same one for every reference."""
    for kind in ("k2", "k3"):
        a, b = (loss_and_gradient(kind, torch.tensor([-1.0]), torch.tensor([r]))[1] for r in (-2.0, -3.0))
        assert abs(a - b) > 0.1


def test_k1_is_a_measure_and_refuses_to_be_a_loss():
    with pytest.raises(
        ValueError, match="kl_estimate: k1 of a log-prob that carries gradient; its expected gradient is 0.*k2"
    ):
        loss_and_gradient("k1", torch.tensor([-1.0]), torch.tensor([-2.0]))
    assert kl_estimate(torch.tensor([-1.0]), torch.tensor([-2.0]), kind="k1") == 1.0


@pytest.mark.parametrize("gap", [100.0, -100.0, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_any_log_ratio_stays_finite_in_value_and_gradient(gap, dtype):
    logp, ref = torch.tensor([-0.5 + min(gap, 0.0)], dtype=dtype), torch.tensor([-0.5 - max(gap, 0.0)], dtype=dtype)
    for kind in ("k2", "k3"):
        loss, g = loss_and_gradient(kind, logp, ref)
        assert torch.isfinite(loss).all() and torch.isfinite(g).all() and loss > 0
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_the_measure_uses_the_unbounded_ratio():
    """Where the loss is bounded at 20 nats, the metric must still tell 30 from 90."""
    values = [kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.0 - gap]), kind="k1").item() for gap in (30.0, 90.0)]
    assert values == [30.0, 90.0]
    assert kl_estimate(torch.tensor([-1.0]), torch.tensor([-31.0]), kind="k2").item() == 450.0


def test_k3_has_no_gradient_beyond_its_bound_and_none_that_points_the_wrong_way():
    for gap in (30.0, -30.0):
        _, g = loss_and_gradient("k3", torch.tensor([-40.0]), torch.tensor([-40.0 + gap]))
        assert g == 0


@pytest.mark.parametrize(
    ("logp", "ref", "kind", "message"),
    [
        (
            torch.zeros(2),
            torch.zeros(3),
            "k2",
            r"kl_estimate: logp and reference_logp must have one shape, got \(2,\) and \(3,\)",
        ),
        (torch.zeros(2), torch.zeros(2, requires_grad=True), "k2", "kl_estimate: reference_logp carries gradient"),
        (torch.zeros(2), torch.zeros(2), "k4", "kl_estimate: kind must be one of k1, k2, k3; got 'k4'"),
    ],
)
def test_refuses_bad_input(logp, ref, kind, message):
    with pytest.raises(ValueError, match=message):
        kl_estimate(logp, ref, kind=kind)


def test_the_coefficient_follows_the_target():
    assert adapted_coefficient(0.5, 3.0, target_kl=3.0) == 0.5
    assert adapted_coefficient(0.5, 3.3, target_kl=3.0) == pytest.approx(0.5 * 1.01)
    assert adapted_coefficient(0.5, 2.7, target_kl=3.0) == pytest.approx(0.5 * 0.99)
    assert adapted_coefficient(0.5, 99.0, target_kl=3.0) == pytest.approx(0.51)  # clipped
    assert adapted_coefficient(0.5, 0.0, target_kl=3.0) == pytest.approx(0.49)
    assert adapted_coefficient(0.5, 6.0, target_kl=3.0, rate=0.5, max_error=1.0) == pytest.approx(0.75)


def test_the_coefficient_settles_where_the_kl_is_on_target():
    coefficient = 1.0
    for _ in range(2000):
        coefficient = adapted_coefficient(coefficient, observed_kl=0.2 / coefficient, target_kl=0.05)
    assert coefficient == pytest.approx(4.0, rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5, 1.0, 0.0, 0.1, 0.2), "expected target_kl > 0, coefficient >= 0; got 0.0, 0.5"),
        ((-0.5, 1.0, 1.0, 0.1, 0.2), "coefficient >= 0; got 1.0, -0.5"),
        ((0.5, 1.0, 1.0, 2.0, 0.6), r"rate \* max_error must be in \[0, 1\), got 2.0 \* 0.6"),
    ],
)
def test_the_coefficient_refuses_bad_settings(arguments, message):
    coefficient, observed, target, rate, max_error = arguments
    with pytest.raises(ValueError, match=message):
        adapted_coefficient(coefficient, observed, target_kl=target, rate=rate, max_error=max_error)


@settings(max_examples=60, deadline=None)
@given(st.floats(-99, 0), st.floats(-99, 0))
def test_k2_and_k3_are_never_negative(a, b):
    logp, ref = torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)
    assert kl_estimate(logp, ref, kind="k2") >= 0 and kl_estimate(logp, ref, kind="k3") >= -1e-12
    torch.testing.assert_close(kl_estimate(logp, ref, kind="k1"), -kl_estimate(ref, logp, kind="k1"))
