"""The border of every accepted range, and the numbers that stand in signatures and constants."""

import math
import warnings

import pytest
import torch

from codriver.signals.aggregation import constant_weight, sequence_mean_weight, token_mean_weight
from codriver.signals.agreement import AgreementDetector, AgreementRule, WindowMinima, agreement_end, windowed_kl
from codriver.signals.divergence import jensen_shannon, jensen_shannon_logp, log_probs, reverse_kl
from codriver.signals.legality import refuse_truncated_sampling
from codriver.signals.outcome import group_advantage, overlong_mask, overlong_penalty
from codriver.signals.reference import adapted_coefficient, kl_estimate
from codriver.signals.reweight import (
    annealed_coefficient,
    distilled_rl_advantage,
    entropy_aware_loss,
    kdrl_loss,
    prefix_weight,
    verifier_signed_advantage,
)
from codriver.signals.sampled import bounded_clip, bounded_floor, discounted, log_ratio_advantage, long_part
from codriver.signals.support import support_reverse_kl, top_k_ids
from codriver.signals.surrogate import cispo, clipped, clipped_ratio, importance_weight
from codriver.signals.targets import arithmetic_mean_logp, extrapolated_logp, geometric_mean_logp, veto_logp
from codriver.signals.teacher_context import select_rollout
from codriver.signals.trust_region import clip_outliers, outlier_forward_kl, prefix_cap, trusted

ONE = torch.ones(1)
P, Q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
YES = torch.tensor([True])

REFUSED = {
    "bounded_floor 0": lambda: bounded_floor(ONE, mixing=0.0),
    "bounded_floor 1": lambda: bounded_floor(ONE, mixing=1.0),
    "bounded_clip 0": lambda: bounded_clip(ONE, bound=0.0),
    "log_ratio clip 0": lambda: log_ratio_advantage(ONE, ONE, clip=0.0),
    "verifier_signed -": lambda: verifier_signed_advantage(ONE, -ONE, -ONE, clip=-0.01),
    "verifier_signed +": lambda: verifier_signed_advantage(ONE, -ONE, -ONE, clip=1.01),
    "distilled bound": lambda: distilled_rl_advantage(ONE, -ONE, -ONE, YES, bound=0.99),
    "clip_low": lambda: clipped_ratio(ONE, ONE, clip_low=1.01, clip_high=0.2),
    "clip_low -": lambda: clipped_ratio(ONE, ONE, clip_low=-0.01, clip_high=0.2),
    "clip_high": lambda: clipped_ratio(ONE, ONE, clip_low=0.2, clip_high=-0.01),
    "dual_clip": lambda: clipped_ratio(ONE, ONE, clip_low=0.2, clip_high=0.2, dual_clip=1.0),
    "dual_clip of logs": lambda: clipped(-ONE, -ONE, ONE, dual_clip=1.0),
    "buffer 0": lambda: overlong_penalty(ONE, max_length=4, buffer=0),
    "buffer": lambda: overlong_penalty(ONE, max_length=4, buffer=5),
    "divisor 0": lambda: constant_weight(ONE, divisor=0.0),
    "target_kl": lambda: adapted_coefficient(1.0, 1.0, target_kl=0.0),
    "coefficient": lambda: adapted_coefficient(-0.01, 1.0, target_kl=1.0),
    "rate": lambda: adapted_coefficient(1.0, 1.0, target_kl=1.0, rate=-0.01),
    "max_error": lambda: adapted_coefficient(1.0, 1.0, target_kl=1.0, rate=2.0, max_error=0.5),
    "annealed": lambda: annealed_coefficient(0, start=0.1, end=0.11),
    "annealed step": lambda: annealed_coefficient(-1),
    "kdrl": lambda: kdrl_loss(ONE, -ONE, -ONE, coefficient=-0.01),
    "prefix strength": lambda: prefix_weight(ONE, YES, strength=-0.01),
    "entropy": lambda: entropy_aware_loss(ONE, ONE, ONE, coefficient=-0.01),
    "discount -": lambda: discounted(ONE, YES, discount=-0.01),
    "discount +": lambda: discounted(ONE, YES, discount=1.01),
    "window": lambda: windowed_kl(ONE, 0),
    "rule window": lambda: AgreementRule(window=0),
    "rule consecutive": lambda: AgreementRule(consecutive=0),
    "rule exemption": lambda: AgreementRule(exemption=-1),
    "warmup 0": lambda: WindowMinima(size=4, warmup_minima=0),
    "warmup": lambda: WindowMinima(size=4, warmup_minima=5),
    "eta -": lambda: WindowMinima().threshold(eta=-0.01, step=0),
    "eta +": lambda: WindowMinima().threshold(eta=1.01, step=0),
    "temperature": lambda: log_probs(ONE, temperature=0.0),
    "teacher temperature": lambda: reverse_kl(P, Q, teacher_temperature=0.0),
    "top_k 0": lambda: top_k_ids(ONE, 0),
    "top_k": lambda: top_k_ids(ONE, 2),
    "bounds": lambda: importance_weight(-ONE, -ONE, low=0.5, high=0.49),
    "bounds -": lambda: cispo(-ONE, -ONE, ONE, low=-0.01, high=1.0),
    "cispo shape": lambda: cispo(-torch.ones(2), -torch.ones(2), ONE),
    "weights -": lambda: geometric_mean_logp([P, Q], [-0.1, 1.1]),
    "weights sum": lambda: arithmetic_mean_logp([P, Q], [0.5, 0.50001]),
    "no weights": lambda: geometric_mean_logp([], []),
    "one weight": lambda: geometric_mean_logp([P, Q], [1.0]),
    "veto": lambda: veto_logp(P, Q, power=-0.01),
    "extrapolated": lambda: extrapolated_logp(P, Q, strength=0.0),
    "outliers": lambda: clip_outliers(ONE, ONE, bound=0.0),
    "prefix_cap": lambda: prefix_cap(3, num_steps=3, max_length=5),
    "prefix_cap -": lambda: prefix_cap(-1, num_steps=3, max_length=5),
    "top_k with a ratio": lambda: refuse_truncated_sampling(
        top_p=1.0, top_k=1, has_policy_gradient=True, is_corrected=False
    ),
    "top_p with a ratio": lambda: refuse_truncated_sampling(
        top_p=0.999, top_k=0, has_policy_gradient=True, is_corrected=False
    ),
    "agreement_end": lambda: agreement_end(torch.ones(2, 3), ONE, threshold=1.0, rule=AgreementRule()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_just_outside_is_refused(name):
    with pytest.raises(ValueError):
        REFUSED[name]()


ACCEPTED = {
    "verifier_signed 0": (lambda: verifier_signed_advantage(ONE, -ONE, -3 * ONE, clip=0.0), 1.0),
    "verifier_signed 1": (lambda: verifier_signed_advantage(-ONE, -ONE, -3 * ONE, clip=1.0), -math.exp(-2)),
    "verifier_signed up": (lambda: verifier_signed_advantage(ONE, -ONE, -3 * ONE, clip=1.0), 2.0),
    "distilled bound 1": (lambda: distilled_rl_advantage(ONE, -ONE, -3 * ONE, YES, bound=1.0), 1.0),
    "clip_low 1": (lambda: clipped_ratio(torch.tensor([0.1]), -ONE, clip_low=1.0, clip_high=0.0), 0.1),
    "clip_low 0": (lambda: clipped_ratio(torch.tensor([0.1]), -ONE, clip_low=0.0, clip_high=0.0), 1.0),
    "dual_clip 1.5": (lambda: clipped_ratio(9 * ONE, -ONE, clip_low=0.2, clip_high=0.2, dual_clip=1.5), 1.5),
    "dual_clip at 0": (lambda: clipped_ratio(9 * ONE, 0 * ONE, clip_low=0.2, clip_high=0.2, dual_clip=1.5), 0.0),
    "dual_clip above 0": (lambda: clipped_ratio(9 * ONE, 0.5 * ONE, clip_low=0.2, clip_high=0.2, dual_clip=3.0), -0.6),
    "buffer is all": (lambda: overlong_penalty(torch.tensor([1]), max_length=4, buffer=4), -0.25),
    "buffer of one, inside": (lambda: overlong_penalty(torch.tensor([3]), max_length=4, buffer=1), 0.0),
    "buffer of one, at the limit": (lambda: overlong_penalty(torch.tensor([4]), max_length=4, buffer=1), -1.0),
    "divisor below 1": (lambda: constant_weight(ONE, divisor=0.5), 2.0),
    "coefficient 0": (lambda: adapted_coefficient(0.0, 9.0, target_kl=1.0), 0.0),
    "rate 0": (lambda: adapted_coefficient(0.5, 9.0, target_kl=1.0, rate=0.0), 0.5),
    "rate and error": (lambda: adapted_coefficient(1.0, 9.0, target_kl=1.0, rate=0.3, max_error=0.5), 1.15),
    "rate and error, below": (lambda: adapted_coefficient(1.0, 0.0, target_kl=1.0, rate=0.3, max_error=0.5), 0.85),
    "small target": (lambda: adapted_coefficient(1.0, 0.55, target_kl=0.5), 1.01),
    "rate above 1": (lambda: adapted_coefficient(1.0, 9.0, target_kl=1.0, rate=1.5, max_error=0.5), 1.75),
    "annealed, constant": (lambda: annealed_coefficient(7, start=0.1, end=0.1, decrement=0.0), 0.1),
    "kdrl 0": (lambda: kdrl_loss(ONE, -ONE, -3 * ONE, coefficient=0.0), 1.0),
    "prefix strength 0": (lambda: prefix_weight(ONE, YES, strength=0.0), 1.0),
    "prefix of nothing": (lambda: prefix_weight(0 * ONE, YES), 1.5),
    "entropy at the threshold": (lambda: entropy_aware_loss(ONE, ONE, torch.tensor([0.5]), threshold=0.5), 1.0),
    "entropy above 0.8": (lambda: entropy_aware_loss(ONE, ONE, torch.tensor([0.81])), 2.0),
    "entropy, coefficient 0": (lambda: entropy_aware_loss(ONE, ONE, 9 * ONE, coefficient=0.0), 1.0),
    "entropy, coefficient": (lambda: entropy_aware_loss(ONE, ONE, 9 * ONE, coefficient=0.25), 1.25),
    "bounds meet": (lambda: importance_weight(-ONE, -3 * ONE, low=1.0, high=1.0), 1.0),
    "cispo at 0": (lambda: cispo(-ONE, -ONE, ONE, low=0.0, high=0.0), 0.0),
    "cispo stops at 5": (lambda: cispo(-ONE, -9 * ONE, ONE), 5.0),
    "cispo goes down to 0": (lambda: cispo(-9 * ONE, -ONE, ONE), 9 * math.exp(-8)),
    "mask at its bounds": (lambda: importance_weight(-ONE, -ONE, mode="token_mask", low=1.0, high=1.0), 1.0),
    "no lower bound": (lambda: importance_weight(-9 * ONE, -ONE, mode="token_mask", low=0.0, high=2.0), math.exp(-8)),
    "upper bound below 1": (lambda: importance_weight(-ONE, -ONE, mode="token_mask", low=0.0, high=0.5), 0.0),
    "upper bound 0": (lambda: importance_weight(-ONE, -ONE, mode="token_mask", low=0.0, high=0.0), 0.0),
    "veto 0": (lambda: veto_logp(P, Q, power=0.0)[:1].exp(), 0.25),
    "discount 0": (lambda: discounted(torch.tensor([3.0, 9.0]), torch.ones(2), discount=0.0)[:1], 3.0),
    "long part, discount 1": (lambda: long_part(torch.tensor([3.0, 9.0]), torch.ones(2))[:1], 9.0),
    "window 1": (lambda: windowed_kl(3 * ONE, 1), 3.0),
    "prefix_cap of one step": (lambda: torch.tensor([prefix_cap(0, num_steps=1, max_length=5)]), 0.0),
    "trust at the border": (lambda: trusted(0.5 * ONE, 0.5 * ONE), 0.0),
    "clip below": (lambda: clip_outliers(-9 * ONE, 0 * ONE, bound=0.5), -0.5),
    "weights nearly sum to 1": (lambda: geometric_mean_logp([P, Q], [0.5, 0.5 + 5e-7])[:1].exp(), 1 / (1 + 3**0.5)),
    "weight 0": (lambda: arithmetic_mean_logp([P, Q], [0.0, 1.0])[:1].exp(), 0.25),
    "top_k 1": (lambda: top_k_ids(ONE, 1), 0.0),
    "teacher at its own temperature": (
        lambda: reverse_kl(P, Q, teacher_temperature=1e9)[None],
        0.0,
    ),
    "temperature squared": (
        lambda: reverse_kl(3 * P, 3 * Q, temperature=3.0, temperature_squared=True)[None],
        9 * 0.5 * math.log(4 / 3),
    ),
    "not temperature squared": (lambda: reverse_kl(3 * P, 3 * Q, temperature=3.0)[None], 0.5 * math.log(4 / 3)),
    "overlong at the limit": (lambda: overlong_mask(torch.tensor([8]), ~YES, max_length=8).float(), 0.0),
    "k3 at 20 nats": (lambda: kl_estimate(0 * ONE, 21 * ONE, kind="k3"), math.exp(20.0) - 21),
    "k3 at -20 nats": (lambda: kl_estimate(21 * ONE, 0 * ONE, kind="k3"), math.exp(-20.0) + 19),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_border_itself_is_accepted(name):
    run, expected = ACCEPTED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(
            torch.as_tensor(run()).float().reshape(1), torch.tensor([expected]), rtol=1e-5, atol=1e-7
        )


def test_the_numbers_of_the_paper_are_the_defaults():
    assert AgreementRule() == AgreementRule(window=64, consecutive=4, exemption=0)
    minima = WindowMinima()
    assert (minima.warmup_minima, minima.warmup_steps, minima._values.maxlen) == (512, 50, 4096)
    minima.push(torch.ones(512))
    assert (minima.threshold(eta=0.3, step=49), minima.threshold(eta=0.3, step=50)) == (None, 1.0)
    assert WindowMinima(size=4, warmup_minima=4).warmup_minima == 4
    assert annealed_coefficient(0) == 5e-3 and annealed_coefficient(10**6) == 1e-3
    assert annealed_coefficient(1) == pytest.approx(4.95e-3)


def test_eta_takes_the_lowest_and_the_highest():
    minima = WindowMinima(size=4, warmup_minima=1, warmup_steps=0)
    minima.push(torch.tensor([1.0, math.inf, 5.0]))
    assert minima.threshold(eta=1.0, step=0) == 1.0 and minima.threshold(eta=0.0, step=0) == 5.0


@pytest.mark.parametrize("beta", [0.1, 0.9, 1 - 0.9, 1 - 0.1])
def test_betas_at_the_border_give_no_warning(beta):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jensen_shannon_logp(P, Q, beta=beta)


@pytest.mark.parametrize("beta", [0.0999, 0.9001])
def test_a_weak_beta_warns_where_it_was_asked_for(beta):
    with pytest.warns(UserWarning, match="shrink like") as caught:
        jensen_shannon_logp(P, Q, beta=beta)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="shrink like"):
        jensen_shannon(P, Q, beta=beta)


@pytest.mark.parametrize("reward", [[2.0, 2.0 + 1e-6], [-3.0, -3.0 - 2e-6], [0.0, 0.0], [1e-9, 1e-9]])
def test_rewards_equal_up_to_float_noise_agree(reward):
    rewards = torch.tensor(reward, dtype=torch.float64)
    assert group_advantage(rewards, torch.tensor([0, 0]), scale="none").tolist() == [0.0, 0.0]


@pytest.mark.parametrize("reward", [[0.5, 0.5 + 2e-6], [-3.0, -3.0 - 9e-6], [0.0, 1e-9], [-1e-9, 1e-9]])
def test_rewards_that_differ_by_more_do_not_agree(reward):
    rewards = torch.tensor(reward, dtype=torch.float64)
    found = group_advantage(rewards, torch.tensor([0, 0]), scale="none")
    torch.testing.assert_close(found, rewards - rewards.mean(), rtol=1e-9, atol=0)


def test_a_standard_deviation_is_divided_by_with_a_millionth_added():
    rewards = torch.tensor([0.0, 2e-6], dtype=torch.float64)
    sigma = 2e-6 / 2**0.5
    for scale in ("std", "batch"):
        found = group_advantage(rewards, torch.tensor([0, 0]), scale=scale)
        torch.testing.assert_close(found, torch.tensor([-1e-6, 1e-6], dtype=torch.float64) / (sigma + 1e-6))


def test_weights_of_nothing_and_of_one_token():
    for weigh in (token_mean_weight, sequence_mean_weight, lambda x: constant_weight(x, divisor=1.0)):
        assert weigh(torch.tensor([0, 0])).tolist() == [0.0, 0.0]
        assert weigh(torch.tensor([1])).tolist() == [1.0]
        assert weigh(torch.tensor([0, 1])).tolist() == [0.0, 1.0]
        assert weigh(torch.tensor([1, 1])).tolist() == [0.5, 0.5]


def test_the_tail_of_a_full_list_has_a_finite_gradient_in_both_precisions():
    for dtype in (torch.float32, torch.float64):
        p = torch.tensor([0.3, 0.7], dtype=dtype).log().requires_grad_()
        q = torch.tensor([0.6, 0.4], dtype=dtype).log()
        value = support_reverse_kl(p, q, remainder="tail")
        (gradient,) = torch.autograd.grad(value, p)
        assert torch.isfinite(gradient).all()
        expected = 0.3 * math.log(0.5) + 0.7 * math.log(0.7 / 0.4)
        assert float(value.detach()) == pytest.approx(expected, abs=2e-6)


def test_a_small_tail_counts_in_full_double_precision():
    p = torch.tensor([1 - 1e-9], dtype=torch.float64).log()
    q = torch.tensor([0.5], dtype=torch.float64).log()
    exact = (1 - 1e-9) * math.log((1 - 1e-9) / 0.5) + 1e-9 * math.log(1e-9 / 0.5)
    assert float(support_reverse_kl(p, q, remainder="tail")) == pytest.approx(exact, abs=1e-12)


def test_a_prox_policy_or_a_window_that_carries_gradient_gives_none():
    kl = torch.tensor([1.0, 2.0], requires_grad=True)
    assert not windowed_kl(kl, 1).requires_grad and not bounded_clip(kl, bound=1.5).requires_grad
    ids = top_k_ids(kl, 1)
    assert not ids.requires_grad and ids.tolist() == [1]


def test_a_trusted_token_takes_nothing_from_a_broken_outlier_loss_and_the_other_way_round():
    broken, fine = torch.tensor([math.inf, 1.0]), torch.tensor([1.0, math.inf])
    assert outlier_forward_kl(fine, broken, torch.tensor([1.0, 0.0])).tolist() == [1.0, 1.0]


def test_the_detector_counts_windows_one_token_at_a_time():
    detector = AgreementDetector(AgreementRule(window=1, consecutive=1, exemption=2), threshold=0.5)
    assert [detector.step(kl) for kl in (0.0, 0.0, 0.5, 0.4)] == [False, False, False, True]
    assert (detector.end, detector.minimum, detector.num_tokens) == (3, 0.0, 4)


def test_a_batch_shorter_than_the_rule_is_left_whole_and_one_just_as_long_is_not():
    rule = AgreementRule(window=2, consecutive=2)
    low = torch.zeros(1, 3)
    assert [x.tolist() for x in agreement_end(low, torch.tensor([3]), threshold=0.5, rule=rule)] == [[0], [3]]
    assert [x.tolist() for x in agreement_end(low[:, :2], torch.tensor([2]), threshold=0.5, rule=rule)] == [[2], [2]]


def test_no_teacher_rollout_at_all_is_no_selection():
    none = torch.zeros(0)
    assert select_rollout(none.bool(), none) is None
    assert select_rollout(torch.tensor([False]), torch.tensor([0.1]), take_incorrect=False) is None
    wrong = torch.tensor([False])
    both = {"hinted_correct_N": wrong, "hinted_overlap_N": torch.tensor([0.9])}
    assert select_rollout(wrong, torch.tensor([0.1]), take_incorrect=False, **both) is None
    with pytest.raises(ValueError, match="one shape"):
        select_rollout(wrong, torch.tensor([0.1]), hinted_correct_N=wrong, hinted_overlap_N=torch.ones(2))
