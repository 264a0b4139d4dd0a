import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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

INF = float("inf")
ALL = [reverse_kl, forward_kl, jensen_shannon, cross_entropy, skewed_reverse_kl, skewed_forward_kl]
KLS = [reverse_kl, forward_kl, jensen_shannon, skewed_reverse_kl, skewed_forward_kl]


def logits(seed, *shape, dtype=torch.float64):
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


def gradient(divergence, z, zt, **options):
    z = z.clone().requires_grad_()
    return torch.autograd.grad(divergence(z, zt, **options).sum(), z)[0]


def slow(name, z, zt, *, T=1.0, beta=0.5, skew=0.1):
    """Each equation with plain Python numbers."""
    e, et = [math.exp(x / T) for x in z], [math.exp(x / T) for x in zt]
    p, q = [x / sum(e) for x in e], [x / sum(et) for x in et]
    kl = lambda a, b: sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))  # noqa: E731
    mix = lambda a, b, s: [s * x + (1 - s) * y for x, y in zip(a, b, strict=True)]  # noqa: E731
    return {
        "reverse_kl": lambda: kl(p, q),
        "forward_kl": lambda: kl(q, p),
        "jensen_shannon": lambda: beta * kl(q, mix(q, p, beta)) + (1 - beta) * kl(p, mix(q, p, beta)),
        "cross_entropy": lambda: -sum(y * math.log(x) for x, y in zip(p, q, strict=True)),
        "skewed_reverse_kl": lambda: kl(p, mix(p, q, skew)),
        "skewed_forward_kl": lambda: kl(q, mix(q, p, skew)),
    }[name]()


@pytest.mark.parametrize("divergence", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
def test_equals_the_equation_written_out(divergence, temperature):
    z, zt = logits(0, 4, 7), logits(1, 4, 7)
    expected = [slow(divergence.__name__, a.tolist(), b.tolist(), T=temperature) for a, b in zip(z, zt, strict=True)]
    torch.testing.assert_close(divergence(z, zt, temperature=temperature), torch.tensor(expected, dtype=torch.float64))


def test_the_two_directions_are_not_confused():
    p, q = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    torch.testing.assert_close(reverse_kl(p, q), torch.tensor(0.9 * math.log(1.8) + 0.1 * math.log(0.2)))
    torch.testing.assert_close(forward_kl(p, q), torch.tensor(-0.5 * math.log(1.8) - 0.5 * math.log(0.2)))


def test_beta_weighs_the_teacher_side():
    p, q = (
        torch.tensor([1.0, 0.0]).log(),
        torch.tensor([0.0, 1.0]).log(),
    )  # disjoint: the entropy of the mixture weights
    torch.testing.assert_close(jensen_shannon(p, q, beta=0.2), torch.tensor(-0.2 * math.log(0.2) - 0.8 * math.log(0.8)))
    p, q = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    m = [0.2 * 0.5 + 0.8 * 0.9, 0.2 * 0.5 + 0.8 * 0.1]
    teacher_side = 0.5 * math.log(0.5 / m[0]) + 0.5 * math.log(0.5 / m[1])
    student_side = 0.9 * math.log(0.9 / m[0]) + 0.1 * math.log(0.1 / m[1])
    torch.testing.assert_close(jensen_shannon(p, q, beta=0.2), torch.tensor(0.2 * teacher_side + 0.8 * student_side))


@pytest.mark.parametrize("divergence", ALL, ids=lambda f: f.__name__)
def test_a_descent_step_raises_the_token_the_teacher_prefers(divergence):
    g = gradient(divergence, torch.zeros(4), torch.tensor([2.0, 0.0, 0.0, 0.0]))
    assert g[0] < 0 < g[1]


@pytest.mark.parametrize("divergence", ALL, ids=lambda f: f.__name__)
def test_gradient_equals_finite_differences(divergence):
    zt = logits(3, 6)
    torch.autograd.gradcheck(lambda z: divergence(z, zt, temperature=1.3), logits(2, 6).requires_grad_())


@pytest.mark.parametrize("divergence", KLS, ids=lambda f: f.__name__)
def test_teacher_equal_to_student_gives_zero_and_no_gradient(divergence):
    z = logits(4, 3, 9)
    torch.testing.assert_close(divergence(z, z.clone()), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(gradient(divergence, z, z.clone()), torch.zeros(3, 9, dtype=torch.float64))


def test_cross_entropy_is_forward_kl_plus_the_teachers_entropy():
    z, zt = logits(5, 3, 9), logits(6, 3, 9)
    torch.testing.assert_close(cross_entropy(z, zt), forward_kl(z, zt) + entropy(zt))
    torch.testing.assert_close(gradient(cross_entropy, z, zt), gradient(forward_kl, z, zt))


@pytest.mark.parametrize(("skewed", "plain"), [(skewed_reverse_kl, reverse_kl), (skewed_forward_kl, forward_kl)])
def test_skew_fades_into_the_plain_kl(skewed, plain):
    torch.testing.assert_close(skewed(logits(7, 8), logits(8, 8), skew=1e-9), plain(logits(7, 8), logits(8, 8)))


@pytest.mark.parametrize("divergence", ALL, ids=lambda f: f.__name__)
def test_a_constant_on_all_logits_changes_nothing(divergence):
    z, zt = logits(9, 5), logits(10, 5)
    torch.testing.assert_close(divergence(z + 7, zt - 3), divergence(z, zt))


@pytest.mark.parametrize("divergence", ALL, ids=lambda f: f.__name__)
def test_temperature_divides_the_logits_of_both_sides(divergence):
    z, zt = logits(11, 5), logits(12, 5)
    torch.testing.assert_close(divergence(z, zt, temperature=2.0), divergence(z / 2, zt / 2))
    torch.testing.assert_close(divergence(z, zt, temperature=2.0, teacher_temperature=0.5), divergence(z / 2, zt / 0.5))


@pytest.mark.parametrize("divergence", [reverse_kl, forward_kl, jensen_shannon], ids=lambda f: f.__name__)
def test_temperature_squared_is_only_applied_when_asked_for(divergence):
    z, zt = logits(13, 5), logits(14, 5)
    plain = divergence(z, zt, temperature=3.0)
    torch.testing.assert_close(divergence(z, zt, temperature=3.0, temperature_squared=True), 9 * plain)


def test_log_prob_twins_agree_with_the_doors_for_logits():
    z, zt = logits(15, 2, 5), logits(16, 2, 5)
    lp, lq = log_probs(z), log_probs(zt)
    torch.testing.assert_close(reverse_kl_logp(lp, lq), reverse_kl(z, zt))
    torch.testing.assert_close(forward_kl_logp(lp, lq), forward_kl(z, zt))
    torch.testing.assert_close(jensen_shannon_logp(lp, lq, beta=0.3), jensen_shannon(z, zt, beta=0.3))


def test_entropy_of_a_uniform_and_of_a_certain_distribution():
    torch.testing.assert_close(entropy(torch.zeros(8)), torch.tensor(math.log(8)))
    torch.testing.assert_close(entropy(torch.tensor([0.0, -INF])), torch.tensor(0.0))
    torch.testing.assert_close(entropy(torch.tensor([0.0, 4.0]), temperature=1e6), torch.tensor(math.log(2)))


EXTREMES = {
    "student certain": ([50.0, -INF, -INF], [1.0, 2.0, 3.0]),
    "teacher certain": ([1.0, 2.0, 3.0], [50.0, -INF, -INF]),
    "disjoint": ([0.0, -INF, -INF], [-INF, 0.0, 0.0]),
    "same token ruled out": ([0.0, 1.0, -INF], [1.0, 0.0, -INF]),
    "lowest float instead of -inf": (
        [0.0, 1.0, torch.finfo(torch.float32).min],
        [1.0, torch.finfo(torch.float32).min, 0],
    ),
    "underflow": ([0.0, 0.0, -300.0], [-300.0, 0.0, 0.0]),
    "huge logits": ([1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]),
}


@pytest.mark.parametrize("divergence", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", EXTREMES)
def test_values_and_gradients_are_finite_at_the_extremes(divergence, dtype, case):
    z, zt = (
        torch.tensor(x, dtype=torch.float64).clamp(min=torch.finfo(dtype).min if "float" in case else -INF)
        for x in EXTREMES[case]
    )
    z, zt = z.to(dtype), zt.to(dtype)
    value = divergence(z, zt)
    assert torch.isfinite(value) and value >= -1e-6 and value <= 101
    assert torch.isfinite(gradient(divergence, z, zt)).all()


def test_a_ruled_out_token_costs_a_hundred_nats_and_not_infinitely_many():
    z, zt = torch.tensor([0.0, 0.0]), torch.tensor([0.0, -INF])
    torch.testing.assert_close(reverse_kl(z, zt), torch.tensor(0.5 * math.log(0.5) + 0.5 * (math.log(0.5) + 100)))


@pytest.mark.parametrize("divergence", KLS, ids=lambda f: f.__name__)
def test_half_precision_is_summed_in_float32_and_stays_non_negative(divergence):
    z, zt = logits(17, 200, 300, dtype=torch.float32), logits(18, 200, 300, dtype=torch.bfloat16)
    value = divergence(z, zt)
    assert value.dtype == torch.float32 and (value >= -1e-6).all()
    close = divergence(zt.float() + 1e-3 * z, zt)  # nearly equal: rounding must not make it negative
    assert (close >= -1e-6).all()
    torch.testing.assert_close(value.double(), divergence(z.double(), zt.double()), atol=1e-4, rtol=1e-4)


def test_float64_stays_float64():
    assert reverse_kl(logits(0, 3), logits(1, 3)).dtype == torch.float64


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, 1.5])
def test_beta_at_the_ends_is_refused_with_a_pointer(beta):
    with pytest.raises(
        ValueError, match="jensen_shannon: beta must be inside .0, 1.*forward KL in place of beta 0.*reverse KL"
    ):
        jensen_shannon(logits(0, 3), logits(1, 3), beta=beta)


@pytest.mark.parametrize(("beta", "end"), [(0.01, "forward"), (0.99, "reverse"), (0.05, "forward"), (0.95, "reverse")])
def test_beta_near_an_end_warns_and_has_a_weak_gradient(beta, end):
    z, zt = logits(19, 12), logits(20, 12)
    with pytest.warns(UserWarning, match="outside .0.1, 0.9."):
        weak = gradient(jensen_shannon, z, zt, beta=beta).norm()
    full = gradient(forward_kl if end == "forward" else reverse_kl, z, zt).norm()
    assert weak < 0.1 * full
    assert gradient(jensen_shannon, z, zt, beta=0.5).norm() > weak


@pytest.mark.parametrize("divergence", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("student", "teacher", "options", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), {}, r"must have one shape, got \(2, 3\) and \(2, 4\)"),
        (torch.zeros(2, 3), torch.zeros(3), {}, r"must have one shape, got \(2, 3\) and \(3,\)"),
        (torch.zeros(3), torch.zeros(3, requires_grad=True), {}, "teacher carries gradient"),
        (torch.zeros(3), torch.zeros(3), {"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        (torch.zeros(3), torch.zeros(3), {"teacher_temperature": -1.0}, "temperature must be > 0, got -1.0"),
    ],
)
def test_refuses_bad_input(divergence, student, teacher, options, message):
    with pytest.raises(ValueError, match=message):
        divergence(student, teacher, **options)


@pytest.mark.parametrize("skewed", [skewed_reverse_kl, skewed_forward_kl])
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_skew_outside_its_range_is_refused(skewed, skew):
    with pytest.raises(ValueError, match=f"{skewed.__name__}: skew must be inside"):
        skewed(torch.zeros(3), torch.zeros(3), skew=skew)


@pytest.mark.parametrize("twin", [reverse_kl_logp, forward_kl_logp, jensen_shannon_logp], ids=lambda f: f.__name__)
def test_log_prob_twins_refuse_a_teacher_with_gradient(twin):
    with pytest.raises(ValueError, match="teacher carries gradient"):
        twin(torch.zeros(3), torch.zeros(3, requires_grad=True))


numbers = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_properties_hold_for_any_logits(data):
    z = torch.tensor(data.draw(numbers), dtype=torch.float64)
    zt = torch.tensor(
        data.draw(st.lists(st.floats(-30, 30, width=32), min_size=len(z), max_size=len(z))), dtype=torch.float64
    )
    for divergence in KLS:
        assert divergence(z, zt) >= -1e-9
    assert jensen_shannon(z, zt) <= math.log(2) + 1e-9
    for beta in (0.1, 0.37, 0.9):
        assert jensen_shannon(z, zt, beta=beta) <= -beta * math.log(beta) - (1 - beta) * math.log(1 - beta) + 1e-9
        torch.testing.assert_close(jensen_shannon(z, zt, beta=beta), jensen_shannon(zt, z, beta=1 - beta))
    assert skewed_reverse_kl(z, zt) <= -math.log(0.1) + 1e-9 and skewed_forward_kl(z, zt) <= -math.log(0.1) + 1e-9
    torch.testing.assert_close(reverse_kl(z, zt), forward_kl(zt, z))
    assert abs(gradient(reverse_kl, z, zt).sum()) < 1e-9  # a shift of all logits changes nothing
