"""The table of `legality` against exact expectations over an enumerable vocabulary."""

import subprocess
import sys

import pytest
import torch

from codriver.signals.divergence import reverse_kl
from codriver.signals.legality import (
    NOTHING,
    OPTIMISES,
    REFUSED,
    USES,
    refuse_double_correction,
    refuse_illegal_pair,
    refuse_truncated_sampling,
)
from codriver.signals.reference import kl_estimate
from codriver.signals.surrogate import clipped

V = 6


def states(seed):
    g = torch.Generator().manual_seed(seed)
    z, zt = (2 * torch.randn(V, generator=g, dtype=torch.float64) for _ in range(2))
    return z, zt.log_softmax(-1)


def k1(logp, lq):
    return logp - lq  # what kl_estimate refuses to differentiate


ESTIMATORS = {
    "k1": lambda z, lq: k1(z.log_softmax(-1), lq),
    "k2": lambda z, lq: kl_estimate(z.log_softmax(-1), lq, kind="k2"),
    "k3": lambda z, lq: kl_estimate(z.log_softmax(-1), lq, kind="k3"),
    "state_kl": lambda z, lq: reverse_kl(z, lq).expand(V),
}


def measured(estimator, use, z, lq):
    z = z.clone().requires_grad_()
    p, logp = z.detach().softmax(-1), z.log_softmax(-1)
    values = ESTIMATORS[estimator](z, lq)
    if use == "value":
        return (p * values).sum().detach()
    loss = values if use == "back_propagated" else clipped(logp, logp.detach(), -values.detach())
    return torch.autograd.grad((p * loss).sum(), z)[0]


def expected(what, z, lq):
    p, lp = z.softmax(-1), z.log_softmax(-1)
    kl = (p * (lp - lq)).sum()
    reverse, forward = p * (lp - lq - kl), p - lq.exp()
    return {
        "reverse KL, unbiased": kl,
        "reverse KL, exact": kl,
        "reverse KL": reverse,
        "forward KL": forward,
        "reverse KL minus forward KL": reverse - forward,
        NOTHING: torch.zeros(V, dtype=torch.float64),
    }.get(what)


@pytest.mark.parametrize(("estimator", "use"), OPTIMISES)
def test_the_table_says_what_each_use_really_optimises(estimator, use):
    for seed in range(3):
        z, lq = states(seed)
        value = measured(estimator, use, z, lq)
        claim = expected(OPTIMISES[estimator, use], z, lq)
        if claim is not None:
            torch.testing.assert_close(value, claim, atol=1e-9, rtol=1e-9)
            continue
        assert OPTIMISES[estimator, use] in ("biased", "not a KL")
        right = "reverse KL, exact" if use == "value" else "reverse KL"
        assert (value - expected(right, z, lq)).abs().max() > 1e-2


def test_the_table_is_complete():
    assert set(OPTIMISES) == {(e, u) for e in ESTIMATORS for u in USES}


def test_every_pair_that_teaches_nothing_is_refused():
    assert {pair for pair, what in OPTIMISES.items() if what == NOTHING} <= set(REFUSED)


@pytest.mark.parametrize(("estimator", "use"), OPTIMISES)
def test_refused_pairs_raise_with_the_reason_and_the_way_out(estimator, use):
    if (estimator, use) not in REFUSED:
        refuse_illegal_pair(estimator, use)
        return
    with pytest.raises(ValueError, match=rf"^{estimator} used as {use}: .*(expected gradient).*(back-propagate|use )"):
        refuse_illegal_pair(estimator, use)


@pytest.mark.parametrize(("estimator", "use"), [("k4", "value"), ("k1", "loss")])
def test_unknown_names_are_refused(estimator, use):
    with pytest.raises(ValueError, match=f"expected one of k1/value, .*; got {estimator}/{use}"):
        refuse_illegal_pair(estimator, use)


def test_two_teachers_give_one_gradient_for_a_back_propagated_k1_and_two_for_k2():
    z, _ = states(0)
    z = z.clone().requires_grad_()

    def gradients(f):
        return [torch.autograd.grad(f(z.log_softmax(-1), states(seed)[1])[2], z)[0] for seed in (1, 2)]

    a, b = gradients(k1)
    assert torch.equal(a, b)
    a, b = gradients(lambda logp, lq: kl_estimate(logp, lq, kind="k2"))
    assert (a - b).abs().max() > 0.1


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 0), (1.0, 50)])
def test_truncated_sampling_needs_a_correction(top_p, top_k):
    with pytest.raises(ValueError, match=f"top_p {top_p}, top_k {top_k}: the engine samples from a truncated"):
        refuse_truncated_sampling(top_p=top_p, top_k=top_k, has_policy_gradient=True, is_corrected=False)
    refuse_truncated_sampling(top_p=top_p, top_k=top_k, has_policy_gradient=True, is_corrected=True)
    refuse_truncated_sampling(top_p=top_p, top_k=top_k, has_policy_gradient=False, is_corrected=False)
    refuse_truncated_sampling(top_p=1.0, top_k=0, has_policy_gradient=True, is_corrected=False)


def test_one_gap_is_corrected_once():
    with pytest.raises(ValueError, match="counts the same gap twice"):
        refuse_double_correction(ratio_against="behaviour", has_importance_weight=True)
    refuse_double_correction(ratio_against="behaviour", has_importance_weight=False)
    refuse_double_correction(ratio_against="proximal", has_importance_weight=True)
    with pytest.raises(ValueError, match="ratio_against must be proximal or behaviour, got 'old'"):
        refuse_double_correction(ratio_against="old", has_importance_weight=False)


def test_the_table_can_be_read_without_loading_torch():
    code = "import sys, codriver.signals.legality; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
