"""Distance of the student from a fixed reference, estimated on sampled tokens, and a coefficient that follows a target.

The reference is an anchor against drift; it is not the teacher. With the teacher in its place, `k2` is KDRL's penalty.
Unit: nats.  Alignment: element t concerns token t, given the tokens before it.
"""

from torch import Tensor

from codriver.signals._inputs import bounded_exp, floored, require_choice, require_no_gradient, require_same_shape

KINDS = ("k1", "k2", "k3")


def kl_estimate(logp: Tensor, reference_logp: Tensor, *, kind: str) -> Tensor:
    """A one-sample estimate of KL(student || reference), for y_t sampled from the student.

        c = log pi_theta(y_t) - log pi_ref(y_t)
        k1 = c                     value unbiased, either sign.   Back-propagated: expected gradient 0, so refused
        k2 = c^2 / 2               value biased, >= 0.            Back-propagated: gradient of the reverse KL
        k3 = exp(-c) - 1 + c       value unbiased, >= 0.          Back-propagated: gradient of the FORWARD KL

    As a value use k1 or k3 on a detached logp; as a loss use k2.
    Args:    logp: carries gradient, unless kind is k1.   reference_logp: constant.
    Returns: nats, per token. k1 and k2 use the unbounded log-ratio; k3 counts |c| beyond 20 as 20, with gradient 0.
    Raises:  ValueError: shapes differ, unknown kind, the reference carries gradient, or k1 of a logp that does.
    Source:  J. Schulman, "Approximating KL divergence" (2020).
    >>> import torch
    >>> logp, ref = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()          # c = log 2 = 0.6931
    >>> [round(float(kl_estimate(logp, ref, kind=kind)), 4) for kind in ("k1", "k2", "k3")]     # .5 - 1 + .6931
    [0.6931, 0.2402, 0.1931]
    """
    require_choice("kl_estimate", "kind", kind, KINDS)
    require_same_shape("kl_estimate", logp=logp, reference_logp=reference_logp)
    require_no_gradient("kl_estimate", reference_logp=reference_logp)
    if kind == "k1" and logp.requires_grad:
        raise ValueError(
            "kl_estimate: k1 of a log-prob that carries gradient; its expected gradient is 0 whatever the reference. "
            "Detach logp to measure, use k2 as a loss, or k1 as a policy-gradient cost"
        )
    log_ratio = floored(logp) - floored(reference_logp)
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return log_ratio.square() / 2
    bounded = log_ratio.clamp(-20.0, 20.0)  # the linear part too: alone it would push the wrong way
    return bounded_exp(-bounded) - 1.0 + bounded


def adapted_coefficient(
    coefficient: float, observed_kl: float, *, target_kl: float, rate: float = 0.1, max_error: float = 0.2
) -> float:
    """The next coefficient of a KL penalty that is to hold a target.

        coefficient * (1 + rate * clip(observed / target - 1, -max_error, max_error))

    More distance than wanted raises the coefficient, less lowers it; at the target it stays.
    Raises:  ValueError: target_kl <= 0, coefficient < 0, or rate * max_error not in [0, 1).
    Source:  Ziegler et al., arXiv 1909.08593, section 2.2 (max_error 0.2, rate 0.1).
    >>> adapted_coefficient(0.5, observed_kl=9.0, target_kl=3.0)                   # error 2, clipped to 0.2
    0.51
    """
    if target_kl <= 0 or coefficient < 0:
        raise ValueError(
            f"adapted_coefficient: expected target_kl > 0, coefficient >= 0; got {target_kl}, {coefficient}"
        )
    if not 0 <= rate * max_error < 1:
        raise ValueError(f"adapted_coefficient: rate * max_error must be in [0, 1), got {rate} * {max_error}")
    error = max(-max_error, min(max_error, observed_kl / target_kl - 1.0))
    return coefficient * (1.0 + rate * error)
