"""The other identities: trust region (T), sequences (Q), off-policy weights (I), several teachers (M), agreement (K).

See test_invariants.py for R, L and G.
"""

import itertools
import math

import torch

from codriver.signals.agreement import AgreementDetector, AgreementRule, agreement_end
from codriver.signals.divergence import forward_kl, reverse_kl
from codriver.signals.reference import kl_estimate
from codriver.signals.reweight import distilled_rl_advantage
from codriver.signals.sampled import (
    bounded_floor,
    discounted,
    extrapolated_advantage,
    log_ratio_advantage,
)
from codriver.signals.support import gather_logp, support_cross_entropy, top_k_ids
from codriver.signals.surrogate import clipped, importance_weight, sequence_ratio
from codriver.signals.targets import arithmetic_mean_logp, extrapolated_logp, geometric_mean_logp, veto_logp
from codriver.signals.trust_region import acceptance, mask_outliers, outlier_forward_kl
from tests.signals.oracle import (
    FKL,
    G_RKL,
    KL,
    LP,
    LQ,
    S_VV,
    ZT,
    C,
    P,
    Q,
    V,
    Z,
    close,
    expected_gradient,
    gradient,
    policy_gradient,
    random_V,
)

# ---- TrOPD

S4 = top_k_ids(ZT, 4)  # the teacher's list


def test_T1_the_expected_trust_is_one_minus_total_variation():
    close((P * acceptance(LP, LQ)).sum(), 1 - 0.5 * (P - Q).abs().sum())


def trusted_loss(trust_V, ids):
    def loss(logp):
        policy = clipped(logp, logp.detach(), log_ratio_advantage(LQ, LP))
        outlier = support_cross_entropy(gather_logp(logp, ids), LQ[ids])
        return outlier_forward_kl(policy, outlier.expand(V), trust_V)

    return expected_gradient(loss)


def test_T2_with_full_trust_tropd_is_the_sampled_reverse_kl():
    close(trusted_loss(torch.ones(V), S4), G_RKL)
    w = acceptance(LP, LQ)
    outlier = -Q[S4] @ S_VV[S4]
    close(trusted_loss(w, S4), (P * w * C) @ S_VV + (P * (1 - w)).sum() * outlier)


def test_T3_equal_policies_are_fully_trusted_and_teach_nothing():
    close(acceptance(LQ, LQ), torch.ones(V))
    close(policy_gradient(mask_outliers(log_ratio_advantage(LP, LP), acceptance(LP, LP))), torch.zeros(V))


def test_T4_a_trusted_penalty_is_bounded_by_one_over_e():
    lp, lq = random_V(5, (1000, V)).log_softmax(-1), random_V(5, (1000, V)).log_softmax(-1)
    penalty = -mask_outliers(log_ratio_advantage(lq, lp), acceptance(lp, lq))
    assert penalty.max() <= 1 / math.e + 1e-12


def test_T5_masking_outliers_removes_the_spike_of_a_mismatch():
    lp = torch.tensor([4.0, 0, 0, 0], dtype=torch.float64).log_softmax(-1)
    lq = torch.tensor([-6.0, 3, 2, 1], dtype=torch.float64).log_softmax(-1)
    size = ((torch.eye(4) - lp.exp()) ** 2).sum(-1)
    plain = log_ratio_advantage(lq, lp)
    masked = mask_outliers(plain, acceptance(lp, lq))
    assert (lp.exp() * masked**2 * size).sum() < (lp.exp() * plain**2 * size).sum()
    assert plain[0] < -9 and masked[0] > -1e-3  # the spike: a token the student is sure of and the teacher rules out


# ---- whole sequences: a tabular prefix tree, all sequences enumerated

V3, L = 3, 3
PREFIXES = [t for n in range(L) for t in itertools.product(range(V3), repeat=n)]
ROW = {t: i for i, t in enumerate(PREFIXES)}
SEQUENCES = list(itertools.product(range(V3), repeat=L))
ROWS = torch.tensor([[ROW[y[:t]] for t in range(L)] for y in SEQUENCES])
TREE, TREE_T = random_V(1.0, (len(PREFIXES), V3)), random_V(1.0, (len(PREFIXES), V3))


def tree_logp(tree):
    return tree.log_softmax(-1)[ROWS, torch.tensor(SEQUENCES)]


def sequence_kl(tree):
    lp = tree_logp(tree)
    return (lp.sum(-1).exp() * (lp - tree_logp(TREE_T)).sum(-1)).sum()


def estimate(discount):
    def loss(tree):
        lp = tree_logp(tree)
        A = discounted(log_ratio_advantage(tree_logp(TREE_T), lp), torch.ones_like(lp), discount=discount)
        return (lp.detach().sum(-1).exp() * clipped(lp, lp.detach(), A).sum(-1)).sum()

    return gradient(loss, TREE)


def local(tree):
    reach = torch.stack([tree_logp(TREE)[:, :t].sum(-1).exp() for t in range(L)], -1)  # per sequence and position
    own = V3 ** (L - torch.arange(L, dtype=torch.float64))  # how many sequences share the prefix of length t
    return (reach / own * reverse_kl(tree, TREE_T)[ROWS]).sum()


def test_Q1_reward_to_go_has_the_gradient_of_the_sequence_reverse_kl():
    close(estimate(1.0), gradient(sequence_kl, TREE))


def test_Q2_the_immediate_signal_has_the_gradient_of_the_local_kl_on_fixed_prefixes():
    close(estimate(0.0), gradient(local, TREE))


def test_Q3_the_two_differ():
    assert (estimate(0.0) - estimate(1.0)).abs().max() > 1e-3


# ---- off-policy weights

MU = random_V(1.0).log_softmax(-1)


def off_policy_gradient(weight_V):
    def loss(z):
        lp = z.log_softmax(-1)
        return (MU.exp() * weight_V * clipped(lp, lp.detach(), log_ratio_advantage(LQ, LP))).sum()

    return gradient(loss)


def test_I1_importance_weights_restore_the_gradient_of_reverse_kl():
    close(off_policy_gradient(importance_weight(LP, MU, mode="token_truncate", high=math.inf)), G_RKL)
    close(off_policy_gradient(importance_weight(LP, MU, mode="token_mask", high=math.inf)), G_RKL)


def test_I2_a_cap_below_the_largest_ratio_biases_it():
    capped = importance_weight(LP, MU, mode="token_truncate", high=1.2)
    close(capped, (LP - MU).exp().clamp(max=1.2))
    assert (off_policy_gradient(capped) - G_RKL).abs().max() > 1e-3


def test_I3_on_teacher_samples_k1_measures_minus_the_forward_kl():
    close((Q * kl_estimate(LP, LQ, kind="k1")).sum(), -FKL)


def test_I4_the_sequence_ratio_is_the_geometric_mean_of_the_token_ratios():
    log_ratio = random_V(0.3, (7,))
    close(sequence_ratio(log_ratio, torch.zeros(7), torch.ones(7)), log_ratio.exp().prod().pow(1 / 7).expand(7))


def test_I5_distilled_rl_weights_have_geometric_mean_one():
    w = distilled_rl_advantage(torch.ones(9), random_V(1.0, (9,)), torch.zeros(9, dtype=torch.float64), torch.ones(9))
    close(w.log().mean(), 0.0)
    assert w.std() > 0.1


# ---- several teachers, extrapolation, softened targets

LQ2 = random_V().log_softmax(-1)
TEACHERS, WEIGHTS = [LQ, LQ2], [0.3, 0.7]


def weighted(divergence, lp):
    """Gradient, at the policy lp, of the weighted sum of divergences to both teachers."""
    return gradient(lambda z: sum(w * divergence(z, q) for w, q in zip(WEIGHTS, TEACHERS, strict=True)), lp)


def test_M1_weighted_reverse_kls_meet_at_the_geometric_mean():
    close(weighted(reverse_kl, geometric_mean_logp(TEACHERS, WEIGHTS)), torch.zeros(V))
    assert weighted(reverse_kl, arithmetic_mean_logp(TEACHERS, WEIGHTS)).abs().max() > 1e-3


def test_M2_weighted_forward_kls_meet_at_the_arithmetic_mean():
    close(weighted(forward_kl, arithmetic_mean_logp(TEACHERS, WEIGHTS)), torch.zeros(V))
    assert weighted(forward_kl, geometric_mean_logp(TEACHERS, WEIGHTS)).abs().max() > 1e-3


def test_M3_weighted_reverse_kls_are_one_reverse_kl_to_the_geometric_mean():
    close(weighted(reverse_kl, Z), gradient(lambda z: reverse_kl(z, geometric_mean_logp(TEACHERS, WEIGHTS))))


def test_M4_the_optimum_of_extrapolation_lies_beyond_the_teacher():
    ref = random_V().log_softmax(-1)
    best = extrapolated_logp(LQ, ref, strength=1.6)
    A = extrapolated_advantage(LQ, best, ref, strength=1.6)
    close(policy_gradient(A, best), torch.zeros(V))
    close(extrapolated_logp(LQ, ref, strength=1.0), LQ)
    close(extrapolated_advantage(LQ, LP, ref, strength=1.0), log_ratio_advantage(LQ, LP))


def test_M5_the_veto_target_is_nearer_than_the_teacher():
    target = veto_logp(LP, LQ, power=0.5)
    close(target, (LQ + 0.5 * LP).log_softmax(-1))
    assert reverse_kl(Z, target) < KL


def test_M6_the_floor_of_the_bounded_signal():
    floor = math.log(0.17 / 0.83)
    assert abs(floor + 1.586) < 1e-2
    close(bounded_floor(-C, mixing=0.17), (-C).clamp(min=floor))
    close(bounded_floor(torch.tensor([-50.0]), mixing=0.17), [floor])


# ---- agreement


def cut(kl, **rule):
    """(effective, generated), by the stream; checked against the batched twin."""
    rule = AgreementRule(**(dict(window=4, consecutive=2, exemption=6) | rule))
    detector, generated = AgreementDetector(rule, threshold=0.5), len(kl)
    for t, d in enumerate(kl):
        if detector.step(float(d)):
            generated = t + 1
            break
    end = len(kl) if detector.end is None else detector.end
    twin = agreement_end(torch.tensor([kl]), torch.tensor([len(kl)]), threshold=0.5, rule=rule)
    assert (end, generated) == tuple(int(x) for x in twin)
    return end, generated


def test_K1_nothing_is_cut_within_the_exemption():
    end, generated = cut([0.0] * 20)
    assert end == 6 and generated > 6


def test_K2_high_kl_never_fires():
    assert cut([1.0] * 50) == (50, 50)


def test_K3_the_cut_goes_back_to_the_first_low_window():
    assert cut([1.0] * 20 + [0.0] * 20) == (19, 24)  # mean of 1 0 0 0 is low: that window starts at 19


def test_K4_one_window_too_few_and_then_recovery_does_not_fire():
    assert cut([1.0] * 10 + [0.0] * 3 + [1.0] * 30, consecutive=3) == (43, 43)
