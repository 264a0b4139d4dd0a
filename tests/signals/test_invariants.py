"""The 53 identities of the oracle (shared/invariants_numpy.py), on the public torch functions, in float64 at 1e-6.

Here R, L and G; test_invariants_policies.py has T, Q, I, M and K.

One position, V tokens: the vector of all V tokens stands for "one sample of each", weighed by its probability, so that
every expectation over sampled tokens is exact.
"""

import math

import pytest
import torch

from codriver.signals.divergence import forward_kl, jensen_shannon, reverse_kl, reverse_kl_logp, skewed_reverse_kl
from codriver.signals.legality import refuse_illegal_pair
from codriver.signals.reference import kl_estimate
from codriver.signals.sampled import (
    log_ratio_advantage,
    state_baseline_advantage,
)
from codriver.signals.support import (
    gather_logp,
    support_mass,
    support_reverse_kl,
    top_k_ids,
)
from codriver.signals.surrogate import clipped
from tests.signals.oracle import (
    FKL,
    G_FKL,
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


def test_R1_gradient_of_reverse_kl():
    close(gradient(lambda z: reverse_kl(z, ZT)), G_RKL)


def test_R2_gradient_of_forward_kl():
    close(gradient(lambda z: forward_kl(z, ZT)), G_FKL)


def test_R3_log_ratio_as_advantage_has_the_gradient_of_reverse_kl():
    close(policy_gradient(log_ratio_advantage(LQ, LP)), G_RKL)


def test_R4_a_baseline_that_is_the_same_for_all_tokens_changes_nothing():
    close(policy_gradient(log_ratio_advantage(LQ, LP) + 3.7), G_RKL)
    close(policy_gradient(state_baseline_advantage(LQ, LP, KL.expand(V))), G_RKL)


def test_R5_back_propagating_k1_has_no_expected_gradient_and_is_refused():
    close(expected_gradient(lambda logp: logp - LQ), torch.zeros(V))
    with pytest.raises(ValueError, match="expected gradient is 0"):
        expected_gradient(lambda logp: kl_estimate(logp, LQ, kind="k1"))


def test_R6_back_propagating_k2_has_the_gradient_of_reverse_kl():
    close(expected_gradient(lambda logp: kl_estimate(logp, LQ, kind="k2")), G_RKL)


def test_R7_the_value_of_k2_is_biased():
    assert ((P * kl_estimate(LP, LQ, kind="k2")).sum() - KL).abs() > 1e-2


def test_R8_the_value_of_k3_is_unbiased():
    close((P * kl_estimate(LP, LQ, kind="k3")).sum(), KL)
    close((P * kl_estimate(LP, LQ, kind="k1")).sum(), KL)


def test_R9_back_propagating_k3_has_the_gradient_of_forward_kl():
    close(expected_gradient(lambda logp: kl_estimate(logp, LQ, kind="k3")), G_FKL)


def test_R10_a_kl_value_as_advantage_has_no_expected_gradient_and_is_refused():
    close(policy_gradient(-reverse_kl(Z, ZT).expand(V)), torch.zeros(V))
    with pytest.raises(ValueError, match="does not depend on the sampled token"):
        refuse_illegal_pair("state_kl", "policy_gradient")


def test_R11_the_state_baseline_lowers_the_second_moment_in_most_states():
    lp, lq = random_V(shape=(2000, V)).log_softmax(-1), random_V(shape=(2000, V)).log_softmax(-1)
    kl = reverse_kl_logp(lp, lq).unsqueeze(-1).expand_as(lp)
    p = lp.exp()
    size = ((torch.eye(V) - p.unsqueeze(1)) ** 2).sum(-1)  # |d log p_v / d logits|^2
    plain = (p * log_ratio_advantage(lq, lp) ** 2 * size).sum(-1)
    centred = (p * state_baseline_advantage(lq, lp, kl) ** 2 * size).sum(-1)
    assert (centred < plain).double().mean() > 0.7  # most, not all
    assert (centred > plain).any()


def test_R12_k3_as_a_policy_gradient_cost_optimises_the_wrong_thing():
    close(policy_gradient(-kl_estimate(LP, LQ, kind="k3")), G_RKL - G_FKL)


# ---- truncated supports


def on(ids, z, remainder):
    return support_reverse_kl(gather_logp(z.log_softmax(-1), ids), gather_logp(LQ, ids), remainder=remainder)


ALL = torch.arange(V)
T4 = top_k_ids(Z, 4)  # the student's list
S4 = top_k_ids(ZT, 4)  # the teacher's list
SG_GRADIENT = (P[T4] * C[T4]) @ S_VV[T4]


def test_L1_local_support_matching_on_the_whole_vocabulary_is_reverse_kl():
    close(on(ALL, Z, "renormalize"), KL)


def test_L2_and_so_is_its_gradient():
    close(gradient(lambda z: on(ALL, z, "renormalize")), G_RKL)


def test_L3_its_gradient_is_zero_off_the_list():
    ps, qs = P[S4] / P[S4].sum(), Q[S4] / Q[S4].sum()
    expected = torch.zeros(V, dtype=torch.float64)
    expected[S4] = ps * ((ps / qs).log() - (ps * (ps / qs).log()).sum())
    close(gradient(lambda z: on(S4, z, "renormalize")), expected)


def test_L4_it_is_zero_for_a_list_of_one_token():
    close(on(top_k_ids(ZT, 1), Z, "renormalize"), 0.0)


def test_L5_it_is_blind_to_mass_off_the_list():
    z = ZT.clone()
    z[[v for v in range(V) if v not in S4.tolist()]] += 5
    assert on(S4, z, "renormalize") < 1e-12
    assert support_mass(gather_logp(z.log_softmax(-1), S4)) < 0.2
    assert reverse_kl(z, ZT) > 1 and on(S4, z, "tail") > 1


def test_L6_the_tail_bucket_is_never_above_the_full_kl_and_grows_with_the_list():
    lp, lq = random_V(shape=(3000, V)).log_softmax(-1), random_V(shape=(3000, V)).log_softmax(-1)
    full = reverse_kl_logp(lp, lq)
    for source in (lp, lq):
        order, last = top_k_ids(source, V), torch.full((3000,), -1.0, dtype=torch.float64)
        for k in range(1, V + 1):
            value = support_reverse_kl(lp.gather(-1, order[:, :k]), lq.gather(-1, order[:, :k]), remainder="tail")
            assert (value <= full + 1e-9).all() and (value >= last - 1e-9).all()
            last = value
        close(last, full)


def test_L7_the_bare_partial_sum_can_be_negative_and_is_not_offered():
    lp, lq = torch.tensor([0.4, 0.6]).log(), torch.tensor([0.1, 0.9]).log()
    assert support_reverse_kl(lp[1:], lq[1:], remainder="stop_gradient") < 0
    for remainder in ("tail", "generalized", "renormalize"):
        assert support_reverse_kl(lp[1:], lq[1:], remainder=remainder) >= 0
    with pytest.raises(ValueError, match="remainder must be one of"):
        support_reverse_kl(lp[1:], lq[1:], remainder="none")


def test_L8_full_kl_is_the_bucket_plus_what_happens_inside_the_tail():
    rest = torch.tensor([v for v in range(V) if v not in T4.tolist()])
    inside = support_reverse_kl(LP[rest], LQ[rest], remainder="renormalize")
    close(on(T4, Z, "tail") + support_mass(LP[rest]) * inside, KL)


def test_L9_generalised_kl_has_the_stop_gradient_gradient():
    close(gradient(lambda z: on(T4, z, "generalized")), SG_GRADIENT)
    close(gradient(lambda z: on(T4, z, "stop_gradient")), SG_GRADIENT)


def test_L10_the_bare_partial_sum_would_add_the_gradient_of_the_mass():
    def bare(z):
        lp = gather_logp(z.log_softmax(-1), T4)
        return (lp.exp() * (lp - LQ[T4])).sum()

    mass = gradient(lambda z: support_mass(gather_logp(z.log_softmax(-1), T4)))
    close(mass, P[T4] @ S_VV[T4])
    close(gradient(bare), gradient(lambda z: on(T4, z, "generalized")) + mass)


def test_L11_generalised_kl_is_not_negative_and_full_on_the_whole_vocabulary():
    for k in range(1, V + 1):
        assert on(top_k_ids(Z, k), Z, "generalized") >= 0 and on(top_k_ids(ZT, k), Z, "generalized") >= 0
    close(on(ALL, Z, "generalized"), KL)


def test_L12_candidate_advantages_weighed_within_the_list_are_the_same_over_the_mass():
    def candidates(z):
        lp = gather_logp(z.log_softmax(-1), T4)
        weight = (lp - lp.logsumexp(-1)).exp().detach()
        return clipped(lp, lp.detach(), weight * log_ratio_advantage(LQ[T4], lp)).sum()

    close(gradient(candidates), gradient(lambda z: on(T4, z, "stop_gradient")) / support_mass(LP[T4]))


# ---- GKD, skew, temperature


@pytest.mark.filterwarnings("ignore:.*outside .0.1, 0.9.")
def test_G1_jsd_over_beta_tends_to_forward_kl():
    close(jensen_shannon(Z, ZT, beta=1e-6) / 1e-6, FKL, 1e-3)


@pytest.mark.filterwarnings("ignore:.*outside .0.1, 0.9.")
def test_G2_jsd_over_one_minus_beta_tends_to_reverse_kl():
    close(jensen_shannon(Z, ZT, beta=1 - 1e-6) / 1e-6, KL, 1e-3)


@pytest.mark.filterwarnings("ignore:.*outside .0.1, 0.9.")
def test_G3_jsd_vanishes_at_both_ends():
    close(jensen_shannon(Z, ZT, beta=1e-9), 0.0)
    close(jensen_shannon(Z, ZT, beta=1 - 1e-9), 0.0)


def test_G4_jsd_is_symmetric_at_one_half_and_at_most_log_2():
    assert 0 < jensen_shannon(Z, ZT) <= math.log(2)
    close(jensen_shannon(Z, ZT), jensen_shannon(ZT, Z))
    assert (jensen_shannon(Z, ZT, beta=0.2) - jensen_shannon(ZT, Z, beta=0.2)).abs() > 1e-3


def test_G5_skewed_reverse_kl_is_bounded():
    mixed = 0.1 * P + 0.9 * Q
    close(skewed_reverse_kl(Z, ZT, skew=0.1), (P * (LP - mixed.log())).sum())
    assert skewed_reverse_kl(Z, ZT, skew=0.1) <= -math.log(0.1)


def test_G6_temperature_squared_keeps_the_size_of_the_gradient():
    T = 1e3
    expected = ((Z - ZT) - (Z - ZT).mean()) / V
    close(gradient(lambda z: forward_kl(z, ZT, temperature=T, temperature_squared=True)), expected, 1e-3)
    close(gradient(lambda z: forward_kl(z, ZT, temperature=T)) * T**2, expected, 1e-3)
