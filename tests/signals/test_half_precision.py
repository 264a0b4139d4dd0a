"""Half-precision inputs are computed in float32; tokens that are ruled out count as e^-100, on either side."""

import itertools
import math

import pytest
import torch

from codriver.signals.agreement import windowed_kl
from codriver.signals.divergence import (
    cross_entropy,
    entropy,
    forward_kl,
    forward_kl_logp,
    jensen_shannon,
    jensen_shannon_logp,
    log_probs,
    reverse_kl,
    reverse_kl_logp,
    skewed_forward_kl,
    skewed_reverse_kl,
)
from codriver.signals.outcome import group_advantage
from codriver.signals.reference import kl_estimate
from codriver.signals.reweight import distilled_rl_advantage, prefix_weight, verifier_signed_advantage
from codriver.signals.sampled import (
    bounded_clip,
    bounded_floor,
    bounded_log,
    bounded_power,
    discounted,
    extrapolated_advantage,
    log_ratio_advantage,
    long_part,
    state_baseline_advantage,
)
from codriver.signals.support import (
    support_cross_entropy,
    support_forward_kl,
    support_jensen_shannon,
    support_mass,
    support_reverse_kl,
    truncated_forward_kl,
)
from codriver.signals.surrogate import cispo, clipped, clipped_ratio, importance_weight, sequence_ratio
from codriver.signals.targets import arithmetic_mean_logp, extrapolated_logp, geometric_mean_logp, veto_logp
from codriver.signals.trust_region import acceptance, clip_outliers, mask_outliers

ALL = torch.ones(5, dtype=torch.bool)
NUMBERS = {
    "windowed_kl": lambda x: windowed_kl(x, 2),
    "bounded_clip": lambda x: bounded_clip(x, bound=0.7),
    "bounded_log": bounded_log,
    "bounded_floor": lambda x: bounded_floor(x, mixing=0.3),
    "discounted": lambda x: discounted(x, ALL, discount=0.9),
    "long_part": lambda x: long_part(x, ALL, discount=0.9, length_normalised=False),
    "state_baseline_advantage": lambda x: state_baseline_advantage(-x.abs(), -x.abs() / 2, x.abs()),
    "state_kl alone": lambda x: state_baseline_advantage(-x.abs().float(), -x.abs().float(), x.abs()),
    "mask_outliers": lambda x: mask_outliers(x, x.abs() / 2),
    "clip_outliers": lambda x: clip_outliers(x, torch.linspace(0, 1, 5), bound=0.4),
    "prefix_weight": lambda x: prefix_weight(x, ALL),
    "cispo": lambda x: cispo(-x.abs(), -x.abs() / 2, x),
    "clipped_ratio": lambda x: clipped_ratio(x.abs().float(), x, clip_low=0.2, clip_high=0.2),
    "support_mass": lambda x: support_mass(-x.abs()),
    "verifier_signed_advantage": lambda x: verifier_signed_advantage(x, -x.abs(), -x.abs() / 2),
    "distilled_rl_advantage": lambda x: distilled_rl_advantage(x, -x.abs(), -x.abs() / 2, ALL),
    "group_advantage": lambda x: group_advantage(x, torch.zeros(5, dtype=torch.long)),
    "log_probs": log_probs,
    "entropy": entropy,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_half_precision_in_float32_out(name):
    x = torch.tensor([1.37, -2.11, 0.19, 0.77, -0.43]).bfloat16()
    found = NUMBERS[name](x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, NUMBERS[name](x.float()), rtol=0, atol=0)


@pytest.mark.parametrize("name", NUMBERS)
def test_double_precision_stays(name):
    x = torch.tensor([1.37, -2.11, 0.19, 0.77, -0.43], dtype=torch.float64)
    assert NUMBERS[name](x).dtype in (torch.float64, torch.float32)
    torch.testing.assert_close(NUMBERS[name](x).float(), NUMBERS[name](x.float()), rtol=1e-5, atol=1e-6)


ONE = torch.ones(4)
ANY = torch.ones(4, dtype=torch.bool)
PAIRS = {
    "log_ratio_advantage": log_ratio_advantage,
    "extrapolated, teacher and student": lambda a, b: extrapolated_advantage(
        a, b, torch.full((4,), -2.0), strength=2.0
    ),
    "extrapolated, reference and student": lambda a, b: extrapolated_advantage(
        torch.full((4,), -2.0), b, a, strength=0.5
    ),
    "extrapolated, teacher and reference": lambda a, b: extrapolated_advantage(
        a, torch.full((4,), -2.0), b, strength=2.0
    ),
    "bounded_power": lambda a, b: bounded_power(a, b, power=0.01),
    "distilled_rl_advantage": lambda a, b: distilled_rl_advantage(ONE, a, b, ANY, bound=1e8),
    "verifier_signed_advantage": lambda a, b: verifier_signed_advantage(ONE, a, b, clip=1.0),
    "k1": lambda a, b: kl_estimate(a, b, kind="k1"),
    "k2": lambda a, b: kl_estimate(a, b, kind="k2"),
    "clipped": lambda a, b: clipped(a, b, ONE),
    "sequence_ratio": lambda a, b: sequence_ratio(a, b, ANY),
    "cispo": lambda a, b: cispo(a, b, ONE),
    "importance_weight": lambda a, b: importance_weight(a, b, mode="token_truncate", high=math.inf),
    "acceptance": acceptance,
    "reverse_kl_logp": reverse_kl_logp,
    "forward_kl_logp": forward_kl_logp,
    "jensen_shannon_logp": jensen_shannon_logp,
    "support_cross_entropy": support_cross_entropy,
    "truncated_forward_kl": truncated_forward_kl,
    "support_reverse_kl": lambda a, b: support_reverse_kl(a, b, remainder="generalized"),
    "support_forward_kl": lambda a, b: support_forward_kl(a, b, remainder="generalized"),
    "support_jensen_shannon": lambda a, b: support_jensen_shannon(a, b, remainder="generalized"),
    "support_reverse_kl, tail": lambda a, b: support_reverse_kl(a - 2, b - 2, remainder="tail"),
    "veto_logp": lambda a, b: veto_logp(a, b, power=0.5),
    "extrapolated_logp": lambda a, b: extrapolated_logp(a, b, strength=1.5),
    "geometric_mean_logp": lambda a, b: geometric_mean_logp([a, b], [0.3, 0.7]),
    "arithmetic_mean_logp": lambda a, b: arithmetic_mean_logp([a, b], [0.3, 0.7]),
}
NOT = -math.inf
SIDES = [torch.tensor(values) for values in itertools.product([NOT, -1.0], repeat=4) if values != (NOT,) * 4]


@pytest.mark.parametrize("name", PAIRS)
def test_a_ruled_out_token_counts_as_a_hundred_nats_on_either_side(name):
    form = PAIRS[name]
    for a, b in itertools.product(SIDES, repeat=2):
        found = form(a, b)
        assert torch.isfinite(found).all(), (a, b)
        torch.testing.assert_close(found, form(a.clamp(min=-100), b.clamp(min=-100)), rtol=0, atol=1e-6)


LOGITS = {
    "reverse_kl": reverse_kl,
    "forward_kl": forward_kl,
    "jensen_shannon": jensen_shannon,
    "cross_entropy": cross_entropy,
    "skewed_reverse_kl": skewed_reverse_kl,
    "skewed_forward_kl": skewed_forward_kl,
}


@pytest.mark.parametrize("name", LOGITS)
def test_divergences_stay_finite_whatever_is_ruled_out(name):
    for a, b in itertools.product(SIDES, repeat=2):
        a = a.clone().requires_grad_()
        found = LOGITS[name](a, b)
        (gradient,) = torch.autograd.grad(found, a)
        assert torch.isfinite(found) and torch.isfinite(gradient).all()
        expected = LOGITS[name](a.detach().clamp(min=-500), b.clamp(min=-500))
        torch.testing.assert_close(found.detach(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("remainder", ["renormalize", "tail", "generalized", "stop_gradient"])
def test_a_list_with_a_token_ruled_out_on_one_side_keeps_the_others(remainder):
    p = torch.tensor([NOT, math.log(0.25), math.log(0.5)])
    q = torch.tensor([math.log(0.5), NOT, math.log(0.25)])
    for form in (support_reverse_kl, support_forward_kl, support_jensen_shannon):
        found = form(p, q, remainder=remainder)
        torch.testing.assert_close(found, form(p.clamp(min=-100), q.clamp(min=-100), remainder=remainder))
        assert torch.isfinite(found)
