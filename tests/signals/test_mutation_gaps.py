"""Cases that a mutation run (tools/mutants.py) found without a test."""

import math

import pytest
import torch

from codriver.signals._inputs import bounded_exp
from codriver.signals.agreement import WindowMinima, window_minimum
from codriver.signals.reference import adapted_coefficient, kl_estimate
from codriver.signals.reweight import distilled_rl_advantage, verifier_signed_advantage
from codriver.signals.sampled import bounded_floor, extrapolated_advantage, mixture_weight
from codriver.signals.surrogate import cispo, importance_weight, sequence_ratio


def test_distilled_rl_centres_each_episode_of_a_batch_by_itself():
    A, mask = torch.ones(2, 2), torch.tensor([[1, 1], [1, 0]])
    teacher, student = torch.tensor([[0.8, 0.2], [0.8, 0.2]]).log(), torch.full((2, 2), 0.4).log()
    rows = [distilled_rl_advantage(A[i], teacher[i], student[i], mask[i]) for i in range(2)]
    torch.testing.assert_close(distilled_rl_advantage(A, teacher, student, mask), torch.stack(rows))


def test_the_truncated_importance_weight_stops_at_two_unless_told_otherwise():
    assert float(importance_weight(torch.tensor([0.9]).log(), torch.tensor([0.1]).log())) == 2.0


def test_a_half_precision_advantage_is_signed_in_float32():
    A, logp = torch.tensor([0.5], dtype=torch.bfloat16), torch.tensor([0.5], dtype=torch.bfloat16).log()
    assert verifier_signed_advantage(A, logp, logp).dtype == torch.float32


def test_log_ratios_count_up_to_twenty_nats():
    expected = torch.tensor([math.exp(20.0), math.exp(-20.0)])
    torch.testing.assert_close(bounded_exp(torch.tensor([1e4, -1e4])), expected, rtol=1e-5, atol=0)


def test_a_loaded_memory_of_minima_forgets_what_it_held():
    memory = WindowMinima(size=4, warmup_minima=1)
    memory.push(torch.tensor([9.0]))
    memory.load_state_dict({"values": [1.0, 2.0]})
    assert memory.state_dict() == {"values": [1.0, 2.0]}


def test_cispo_counts_a_token_that_both_policies_rule_out_as_ratio_one():
    ruled_out = torch.tensor([-math.inf])
    assert float(cispo(ruled_out, ruled_out, torch.tensor([1.0]))) == 100.0  # -1 * 1 * -100 nats


def test_a_coefficient_may_not_fall_to_zero_in_one_step():
    with pytest.raises(ValueError, match="rate \\* max_error must be in"):
        adapted_coefficient(0.5, 1.0, target_kl=1.0, rate=1.0, max_error=1.0)


def test_an_episode_without_sampled_tokens_has_ratio_one_and_a_finite_gradient():
    logp, none = torch.tensor([-1.0, -2.0], requires_grad=True), torch.zeros(2, dtype=torch.bool)
    ratio = sequence_ratio(logp, torch.tensor([-3.0, -1.0]), none)
    (gradient,) = torch.autograd.grad(ratio.sum(), logp)
    assert ratio.tolist() == [1.0, 1.0] and gradient.tolist() == [0.0, 0.0]
    prox, behaviour = torch.tensor([-3.0, -1.0]), torch.tensor([-1.0, -1.0])
    weight = importance_weight(prox, behaviour, mode="geometric_mask", low=0.9, high=1.1, mask=none)
    assert weight.tolist() == [1.0, 1.0]


def test_the_size_of_an_advantage_does_not_enter_the_exponent():
    A, teacher, student = torch.tensor([2.0]), torch.tensor([-1.0]), torch.tensor([-1.1])
    assert float(verifier_signed_advantage(A, teacher, student)) == pytest.approx(2 * math.exp(0.1))


def test_an_extrapolated_advantage_carries_no_gradient():
    student = torch.tensor([-1.0], requires_grad=True)
    assert not extrapolated_advantage(torch.tensor([-2.0]), student, torch.tensor([-3.0]), strength=2.0).requires_grad


def test_a_rollout_of_one_token_has_a_window_of_one():
    assert window_minimum(torch.tensor([[3.0]]), torch.tensor([1]), window=1).tolist() == [3.0]


def test_a_floor_of_nothing_is_refused_by_name():
    with pytest.raises(ValueError, match="mixing must be in"):
        bounded_floor(torch.tensor([1.0]), mixing=0.0)


def test_a_mixture_weight_is_finite_whatever_is_ruled_out():
    none, some = torch.tensor([-math.inf]), torch.tensor([-1.0])
    assert float(mixture_weight(none, none, teacher_share=0.2)) == 1.0
    assert float(mixture_weight(none, some, teacher_share=0.2)) == pytest.approx(1 / 0.8)
    only_teacher = float(mixture_weight(some, none, teacher_share=0.2))
    assert only_teacher == pytest.approx(math.exp(-80) / 0.2, rel=1e-4)


def test_k3_counts_a_log_ratio_up_to_twenty_nats_in_both_its_parts():
    zero, far = torch.zeros(1, dtype=torch.float64), torch.full((1,), 21.0, dtype=torch.float64)
    assert float(kl_estimate(zero, far, kind="k3")) == pytest.approx(math.exp(20.0) - 21.0, rel=1e-12)
