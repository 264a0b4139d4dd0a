import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.signals import divergence
from codriver.signals.support import (
    REMAINDERS,
    gather_logp,
    support_cross_entropy,
    support_forward_kl,
    support_jensen_shannon,
    support_mass,
    support_reverse_kl,
    top_k_ids,
    truncated_forward_kl,
    union_ids,
)
from tests.signals.lists import FORMS, FULL, INF, every_form, every_remainder, gradient, logits, on

# ---- known faults of other tools


def test_a_student_with_more_mass_on_the_list_still_learns():
    """Teacher (.5, .3, .1, .1), student (.6, .38, .01, .01), K = 2: the bare forward sum is negative; clamped, it is dead."""
    zt = torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64).log()
    z = torch.tensor([0.6, 0.38, 0.01, 0.01], dtype=torch.float64).log()
    ids = top_k_ids(zt, 2)
    assert on(support_forward_kl, ids, z, zt, remainder="stop_gradient") < 0  # what others clamp to 0
    for remainder in ("tail", "generalized", "renormalize"):
        value = on(support_forward_kl, ids, z, zt, remainder=remainder)
        assert value > 0
        assert gradient(lambda z, r=remainder: on(support_forward_kl, ids, z, zt, remainder=r), z).norm() > 1e-3
    assert on(support_forward_kl, ids, z, zt, remainder="tail") <= divergence.forward_kl(z, zt) + 1e-12


def test_a_single_slot_with_a_negative_term_still_learns():
    """Student (.6, .4), teacher (.9, .1), K = 1: the bare reverse sum is -0.243, the full reverse KL 0.311."""
    z, zt = torch.tensor([0.6, 0.4], dtype=torch.float64).log(), torch.tensor([0.9, 0.1], dtype=torch.float64).log()
    ids = top_k_ids(zt, 1)
    torch.testing.assert_close(
        on(support_reverse_kl, ids, z, zt, remainder="stop_gradient").item(), -0.243, atol=1e-3, rtol=0
    )
    torch.testing.assert_close(on(support_reverse_kl, ids, z, zt, remainder="tail").item(), 0.311, atol=1e-3, rtol=0)
    assert gradient(lambda z: on(support_reverse_kl, ids, z, zt, remainder="tail"), z)[0] < -0.1


def test_the_tail_sees_the_mass_that_local_matching_does_not():
    """Student (.05, .05, .9 elsewhere), teacher (.45, .45, .1): equal within the list."""
    z, zt = torch.tensor([0.05, 0.05, 0.9]).log(), torch.tensor([0.45, 0.45, 0.1]).log()
    ids = torch.tensor([0, 1])
    assert on(support_reverse_kl, ids, z, zt, remainder="renormalize") < 1e-6
    assert on(support_reverse_kl, ids, z, zt, remainder="tail") > 1
    assert gradient(lambda z: on(support_reverse_kl, ids, z, zt, remainder="tail"), z)[2] > 0.1


def test_truncated_forward_gradient_uses_the_mass_of_the_list():
    z, zt = logits(17, 9), logits(18, 9)
    ids = top_k_ids(zt, 3)
    p, q = z.softmax(-1), zt.softmax(-1)
    on_list = torch.zeros(9, dtype=torch.float64).index_fill(0, ids, 1.0)
    mass = (q * on_list).sum()
    torch.testing.assert_close(gradient(lambda z: on(support_cross_entropy, ids, z, zt), z), mass * p - q * on_list)
    torch.testing.assert_close(gradient(lambda z: on(truncated_forward_kl, ids, z, zt), z), p - q * on_list / mass)


# ---- extremes

EXTREMES = {
    "student certain, on the list": ([0.0, -INF, -INF, -INF], [0.4, 0.3, 0.2, 0.1]),
    "student certain, off the list": ([-INF, -INF, 0.0, -INF], [0.4, 0.3, 0.2, 0.1]),
    "teacher certain": ([0.4, 0.3, 0.2, 0.1], [0.0, -INF, -INF, -INF]),
    "teacher rows padded with -inf": ([0.4, 0.3, 0.2, 0.1], [0.0, -INF, -INF, -INF]),
    "both ruled out": ([-INF, -INF, 0.0, 0.0], [-INF, -INF, 0.0, 0.0]),
    "mass rounds to one": ([30.0, 29.0, -90.0, -90.0], [30.0, 28.0, -90.0, -90.0]),
    "underflow": ([0.0, -200.0, 0.0, 0.0], [-200.0, 0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("form", [*FORMS, support_cross_entropy, truncated_forward_kl], ids=lambda f: f.__name__)
@every_remainder
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", EXTREMES)
def test_values_and_gradients_are_finite_at_the_extremes(form, remainder, dtype, case):
    options = {"remainder": remainder} if form in FORMS else {}
    z, zt = (torch.tensor(x, dtype=torch.float64).log_softmax(-1).to(dtype) for x in EXTREMES[case])
    ids = torch.tensor([0, 1, -1])
    value = form(gather_logp(z, ids), gather_logp(zt, ids), **options)
    assert torch.isfinite(value) and value < 201
    g = gradient(lambda z: form(gather_logp(z.log_softmax(-1), ids), gather_logp(zt, ids), **options), z)
    assert torch.isfinite(g).all() and g.norm() < 1e3
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_the_result_of_float32_is_close_to_that_of_float64():
    z, zt = logits(19, 50, 200), logits(20, 50, 200)
    ids = top_k_ids(zt, 20)
    for form in FORMS:
        for remainder in REMAINDERS:
            a = on(form, ids, z.float(), zt.float(), remainder=remainder).double()
            torch.testing.assert_close(a, on(form, ids, z, zt, remainder=remainder), atol=1e-5, rtol=1e-4)


def test_renormalising_at_vanishing_mass_is_not_diluted_by_empty_slots():
    lp, lq = torch.tensor([-99.0, -98.0, -INF]), torch.tensor([-1.0, -2.0, -INF])
    value = support_reverse_kl(lp, lq, remainder="renormalize")
    torch.testing.assert_close(value, support_reverse_kl(lp[:2], lq[:2], remainder="renormalize"))


# ---- errors


@pytest.mark.parametrize("form", [*FORMS, support_cross_entropy, truncated_forward_kl], ids=lambda f: f.__name__)
def test_refuses_bad_input(form):
    with pytest.raises(
        ValueError,
        match=rf"{form.__name__}: student_logp and teacher_logp must have one shape, got \(2, 3\) and \(2, 4\)",
    ):
        form(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=f"{form.__name__}: teacher_logp carries gradient"):
        form(torch.zeros(3), torch.zeros(3, requires_grad=True))


@every_form
def test_refuses_an_unknown_remainder(form):
    with pytest.raises(
        ValueError, match=f"{form.__name__}: remainder must be one of renormalize, tail, .*; got 'bare'"
    ):
        form(torch.zeros(3), torch.zeros(3), remainder="bare")


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_beta_at_the_ends_is_refused_and_beta_near_them_warns(beta):
    with pytest.raises(ValueError, match="support_jensen_shannon: beta must be inside"):
        support_jensen_shannon(torch.zeros(3), torch.zeros(3), beta=beta)
    with pytest.warns(UserWarning, match="outside .0.1, 0.9."):
        support_jensen_shannon(torch.zeros(3) - 2, torch.zeros(3) - 2, beta=abs(beta - 0.05))


# ---- properties


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(0.1, 6.0))
def test_properties_hold_for_any_list(seed, k, scale):
    z, zt = logits(seed, 8) * scale, logits(seed + 1, 8) * scale
    for ids in (top_k_ids(z, k), top_k_ids(zt, k), union_ids(top_k_ids(z, k), top_k_ids(zt, k))):
        for form in FORMS:
            values = {r: on(form, ids, z, zt, remainder=r) for r in REMAINDERS}
            assert min(values[r] for r in ("renormalize", "tail", "generalized")) >= -1e-9
            assert values["tail"] <= FULL[form](z, zt) + 1e-3  # 1 - P_S cancels: a tail of 1e-12 is known to 1e-4
        jsd = on(support_jensen_shannon, ids, z, zt)
        assert jsd <= math.log(2) + 1e-9
        assert (
            on(truncated_forward_kl, ids, z, zt) >= on(support_forward_kl, ids, z, zt, remainder="renormalize") - 1e-9
        )
        assert 0 <= support_mass(gather_logp(z.log_softmax(-1), ids)) <= 1 + 1e-9
