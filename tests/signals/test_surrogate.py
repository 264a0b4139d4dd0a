import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.signals.surrogate import MODES, cispo, clipped, clipped_ratio, importance_weight, sequence_ratio

INF = float("inf")


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_and_gradient(f, logp):
    logp = torch.as_tensor(logp).clone().requires_grad_()
    loss = f(logp)
    return loss.detach(), torch.autograd.grad(loss.sum(), logp)[0]


ratios = pytest.mark.parametrize("ratio", [0.1, 0.79, 0.81, 1.0, 1.19, 1.29, 4.0])


@ratios
@pytest.mark.parametrize("A", [2.0, -2.0])
@pytest.mark.parametrize("dual", [None, 3.0])
def test_equals_the_equation_written_out(ratio, A, dual):
    low, high = 0.2, 0.28
    objective = min(ratio * A, min(max(ratio, 1 - low), 1 + high) * A)
    if dual and A < 0:
        objective = max(objective, dual * A)
    logp = torch.tensor([math.log(ratio)], dtype=torch.float64)
    loss = clipped(
        logp, torch.zeros(1, dtype=torch.float64), torch.tensor([A]), clip_low=low, clip_high=high, dual_clip=dual
    )
    torch.testing.assert_close(loss, torch.tensor([-objective], dtype=torch.float64))


def test_at_ratio_one_it_is_the_policy_gradient():
    logp, A = normal(0, 9), normal(1, 9)
    loss, g = loss_and_gradient(lambda lp: clipped(lp, logp, A), logp)
    torch.testing.assert_close(loss, -A)
    torch.testing.assert_close(g, -A)


def test_a_descent_step_raises_tokens_of_positive_advantage():
    _, g = loss_and_gradient(lambda lp: clipped(lp, torch.zeros(2), torch.tensor([1.0, -1.0])), torch.zeros(2))
    assert g[0] < 0 < g[1]


def test_gradient_stops_only_where_the_gain_is_as_large_as_allowed():
    """Each clip has its own side: too high with A > 0, too low with A < 0; the other two corners keep their gradient."""
    logp = torch.tensor([1.3, 1.25, 0.75, 1.3, 0.75]).log()
    A = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
    _, g = loss_and_gradient(lambda lp: clipped(lp, torch.zeros(5), A, clip_low=0.2, clip_high=0.28), logp)
    assert (g == 0).tolist() == [True, False, True, False, False]


def test_the_dual_clip_touches_only_negative_advantages():
    logp = torch.tensor([5.0, 5.0]).log()
    A = torch.tensor([-1.0, 1.0])
    plain, _ = loss_and_gradient(lambda lp: clipped(lp, torch.zeros(2), A), logp)
    dual, g = loss_and_gradient(lambda lp: clipped(lp, torch.zeros(2), A, dual_clip=3.0), logp)
    torch.testing.assert_close(plain, torch.tensor([5.0, -1.2]))
    torch.testing.assert_close(dual, torch.tensor([3.0, -1.2]))
    assert g[0] == 0


@pytest.mark.parametrize("gap", [100.0, -100.0, 1e4, INF, -INF])
@pytest.mark.parametrize("A", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_any_log_ratio_stays_finite_in_loss_and_gradient(gap, A, dtype):
    logp, prox = (torch.tensor([-1.0 + min(gap, 0.0)], dtype=dtype), torch.tensor([-1.0 - max(gap, 0.0)], dtype=dtype))
    advantage, ones = torch.tensor([A]), torch.ones(1)
    for f in (
        lambda lp: clipped(lp, prox, advantage),
        lambda lp: clipped(lp, prox, advantage, dual_clip=3.0),
        lambda lp: cispo(lp, prox, advantage),
        lambda lp: clipped_ratio(sequence_ratio(lp, prox, ones), advantage, clip_low=3e-4, clip_high=4e-4),
    ):
        loss, g = loss_and_gradient(f, logp)
        assert torch.isfinite(loss).all() and torch.isfinite(g).all()
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for mode in MODES:
        assert torch.isfinite(importance_weight(logp, prox, mode=mode, low=0.5, high=INF)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prox_logp": torch.zeros(2)}, r"clipped: logp and prox_logp must have one shape, got \(3,\) and \(2,\)"),
        ({"advantage": torch.zeros(1)}, r"clipped: ratio and advantage must have one shape, got \(3,\) and \(1,\)"),
        ({"prox_logp": torch.zeros(3, requires_grad=True)}, "clipped: prox_logp carries gradient"),
        ({"advantage": torch.zeros(3, requires_grad=True)}, "clipped: advantage carries gradient"),
        ({"clip_low": -0.1}, "expected 0 <= clip_low <= 1 and clip_high >= 0, got -0.1 and 0.2"),
        ({"clip_low": 1.1}, "expected 0 <= clip_low <= 1"),
        ({"clip_high": -0.1}, "clip_high >= 0, got 0.2 and -0.1"),
        ({"dual_clip": 1.0}, "dual_clip must be > 1, got 1.0"),
    ],
)
def test_clipped_refuses_bad_input(change, message):
    arguments = {"logp": torch.zeros(3), "prox_logp": torch.zeros(3), "advantage": torch.zeros(3)} | change
    with pytest.raises(ValueError, match=message):
        clipped(**arguments)


# ---- whole sequences


def test_the_sequence_ratio_has_the_gradient_of_the_sequence_form_when_averaged():
    logp, prox, mask = normal(2, 6), normal(3, 6), torch.tensor([1, 1, 0, 1, 1, 1])

    def sequence(lp):
        return ((lp - prox) * mask).sum() / mask.sum()

    _, expected = loss_and_gradient(lambda lp: sequence(lp).exp(), logp)
    ratio, g = loss_and_gradient(lambda lp: (sequence_ratio(lp, prox, mask) * mask) / mask.sum(), logp)
    torch.testing.assert_close(g, expected)
    torch.testing.assert_close(sequence_ratio(logp, prox, mask)[0], sequence(logp).exp())
    assert sequence_ratio(logp, prox, mask)[2] == 1


def test_a_sequence_of_one_token_is_ppo():
    logp, prox, A = normal(4, 5, 1), normal(5, 5, 1), normal(6, 5, 1)
    a = loss_and_gradient(lambda lp: clipped(lp, prox, A), logp)
    b = loss_and_gradient(
        lambda lp: clipped_ratio(sequence_ratio(lp, prox, torch.ones(5, 1)), A, clip_low=0.2, clip_high=0.2), logp
    )
    torch.testing.assert_close(a, b)


def test_packed_episodes_keep_to_themselves():
    logp, prox = normal(7, 7), normal(8, 7)
    episode, mask = torch.tensor([9, 9, 9, 4, 4, 4, 4]), torch.tensor([1, 0, 1, 1, 1, 1, 0])
    packed = sequence_ratio(logp, prox, mask, episode=episode)
    for part in (slice(0, 3), slice(3, 7)):
        torch.testing.assert_close(packed[part], sequence_ratio(logp[part], prox[part], mask[part]))
        for mode in MODES:
            options = {"mode": mode, "low": 0.1, "high": 3.0}
            alone = importance_weight(logp[part], prox[part], mask=mask[part], **options)
            torch.testing.assert_close(
                importance_weight(logp, prox, mask=mask, episode=episode, **options)[part], alone
            )


def test_sequence_forms_refuse_bad_input():
    with pytest.raises(ValueError, match="sequence_ratio: logp and prox_logp and mask must have one shape"):
        sequence_ratio(torch.zeros(3), torch.zeros(3), torch.ones(2))
    with pytest.raises(ValueError, match="sequence_ratio: prox_logp carries gradient"):
        sequence_ratio(torch.zeros(3), torch.zeros(3, requires_grad=True), torch.ones(3))
    with pytest.raises(ValueError, match="episode ids: logp and episode must have one shape"):
        sequence_ratio(torch.zeros(3), torch.zeros(3), torch.ones(3), episode=torch.zeros(2))


# ---- CISPO


def test_cispo_keeps_a_gradient_where_clipped_has_none():
    logp = torch.tensor([9.0, 0.5]).log()
    loss, g = loss_and_gradient(lambda lp: cispo(lp, torch.zeros(2), torch.tensor([1.0, -2.0])), logp)
    torch.testing.assert_close(g, torch.tensor([-5.0, 1.0]))  # -clip(r, 0, 5) A
    torch.testing.assert_close(loss, torch.tensor([-5.0, 1.0]) * logp)


def test_cispo_at_ratio_one_is_reinforce_and_bounds_from_below_too():
    logp, A = normal(9, 5), normal(10, 5)
    torch.testing.assert_close(loss_and_gradient(lambda lp: cispo(lp, logp, A), logp)[1], -A)
    _, g = loss_and_gradient(
        lambda lp: cispo(lp, torch.zeros(1), torch.ones(1), low=0.7, high=2.0), torch.tensor([0.1]).log()
    )
    torch.testing.assert_close(g, torch.tensor([-0.7]))


@pytest.mark.parametrize(("low", "high"), [(-0.1, 1.0), (2.0, 1.0)])
def test_bounds_in_the_wrong_order_are_refused(low, high):
    with pytest.raises(ValueError, match="cispo: expected 0 <= low <= high"):
        cispo(torch.zeros(1), torch.zeros(1), torch.zeros(1), low=low, high=high)
    with pytest.raises(ValueError, match="importance_weight: expected 0 <= low <= high"):
        importance_weight(torch.zeros(1), torch.zeros(1), low=low, high=high)


def test_cispo_refuses_gradient_in_its_constants():
    for which in ("prox_logp", "advantage"):
        tensors = {n: torch.zeros(1, requires_grad=n == which) for n in ("logp", "prox_logp", "advantage")}
        with pytest.raises(ValueError, match=f"cispo: {which} carries gradient"):
            cispo(**tensors)


# ---- importance weights

PROX, BEHAVIOUR = (
    torch.tensor([0.6, 0.3, 0.1]).log(),
    torch.tensor([0.2, 0.3, 0.4]).log(),
)  # rho = 3, 1, 1/4; product 3/4


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", 0.0, 2.0, [2.0, 1.0, 0.25]),
        ("token_truncate", 0.5, 2.0, [2.0, 1.0, 0.5]),
        ("token_mask", 0.5, 2.0, [0.0, 1.0, 0.0]),
        ("token_mask", 0.25 - 1e-6, 3.0 + 1e-6, [3.0, 1.0, 0.25]),
        ("sequence_truncate", 0.0, 2.0, [0.75] * 3),
        ("sequence_truncate", 0.0, 0.5, [0.5] * 3),
        ("sequence_mask", 0.5, 2.0, [0.75] * 3),
        ("sequence_mask", 0.8, 2.0, [0.0] * 3),
        ("geometric_mask", 0.9, 1.1, [1.0] * 3),  # 0.75^(1/3) = 0.909
        ("geometric_mask", 0.95, 1.1, [0.0] * 3),
        ("geometric_mask", 0.5, 0.9, [0.0] * 3),
    ],
)
def test_hand_values_of_each_mode(mode, low, high, expected):
    torch.testing.assert_close(
        importance_weight(PROX, BEHAVIOUR, mode=mode, low=low, high=high), torch.tensor(expected)
    )


@pytest.mark.parametrize("mode", MODES)
def test_equal_policies_have_weight_one_and_no_weight_carries_gradient(mode):
    logp = PROX.clone().requires_grad_()
    w = importance_weight(logp, PROX.clone().requires_grad_(), mode=mode, low=0.5, high=2.0)
    assert not w.requires_grad
    torch.testing.assert_close(w, torch.ones(3))


@pytest.mark.parametrize("mode", MODES)
def test_tokens_outside_the_mask_do_not_enter_the_product(mode):
    """A tool token with a placeholder log-prob of 0.0 must not move the episode's weight."""
    prox, behaviour = torch.cat([PROX, torch.tensor([-9.0])]), torch.cat([BEHAVIOUR, torch.tensor([0.0])])
    mask = torch.tensor([1, 1, 1, 0])
    w = importance_weight(prox, behaviour, mode=mode, low=0.5, high=2.0, mask=mask)
    torch.testing.assert_close(w[:3], importance_weight(PROX, BEHAVIOUR, mode=mode, low=0.5, high=2.0))
    if mode.startswith("token"):
        assert w[3] == 1


def test_the_sequence_weight_is_unbiased_over_enumerated_sequences():
    prox, mu, f = normal(11, 3).log_softmax(-1), normal(12, 3).log_softmax(-1), normal(13, 3, 3)
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    w = importance_weight(prox[pairs], mu[pairs], mode="sequence_truncate", high=INF)[:, 0]
    torch.testing.assert_close(
        (mu[pairs].sum(-1).exp() * w * f.flatten()).sum(), (prox[pairs].sum(-1).exp() * f.flatten()).sum()
    )


def test_the_geometric_form_does_not_depend_on_the_length():
    for n in (1, 10, 1000):
        prox, behaviour = torch.full((n,), -1.0), torch.full((n,), -1.01)  # rho = 1.01 per token
        assert importance_weight(prox, behaviour, mode="geometric_mask", low=0.98, high=1.02).eq(1).all()
        assert importance_weight(prox, behaviour, mode="geometric_mask", low=0.999, high=1.001).eq(0).all()


def test_a_ratio_beyond_the_bounds_is_masked_even_where_exp_is_bounded():
    assert importance_weight(torch.tensor([-1.0]), torch.tensor([-99.0]), mode="token_mask", high=1e30).item() == 0
    assert importance_weight(torch.tensor([-99.0]), torch.tensor([-1.0]), mode="token_mask", low=1e-12).item() == 0


def test_importance_weight_refuses_bad_input():
    with pytest.raises(ValueError, match="mode must be one of token_truncate, .*; got 'tis'"):
        importance_weight(torch.zeros(1), torch.zeros(1), mode="tis")
    with pytest.raises(
        ValueError, match="importance_weight: prox_logp and behaviour_logp and mask must have one shape"
    ):
        importance_weight(torch.zeros(2), torch.zeros(3))


@settings(max_examples=60, deadline=None)
@given(st.floats(-50, 0), st.floats(-50, 0), st.floats(-5, 5), st.floats(0, 1), st.floats(0, 3))
def test_the_surrogate_is_never_below_the_unclipped_loss(logp, prox, A, low, high):
    """PPO's bound is pessimistic: minimising it never promises more than the plain ratio does."""
    logp, prox, A = (torch.tensor([x], dtype=torch.float64) for x in (logp, prox, A))
    ratio = (logp - prox).clamp(-20, 20).exp()
    assert clipped(logp, prox, A, clip_low=low, clip_high=high) >= -ratio * A - 1e-9 * (1 + ratio)
    for mode in ("token_truncate", "sequence_truncate"):
        assert low <= importance_weight(logp, prox, mode=mode, low=low, high=low + high) <= low + high
