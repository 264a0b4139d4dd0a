"""What an estimator really optimises when it is used in a given way, and the uses that are refused.

Needs no torch: a recipe check may ask before anything loads. Every row of `OPTIMISES` is tested in expectation over an
enumerable vocabulary (tests/signals/test_legality.py).
Uses:  value            measured, averaged over tokens sampled from the student
       policy_gradient  detached, minus it as the advantage of the sampled token
       back_propagated  differentiated directly, as a loss
"""

USES = ("value", "policy_gradient", "back_propagated")

NOTHING = "nothing"

OPTIMISES: dict[tuple[str, str], str] = {
    ("k1", "value"): "reverse KL, unbiased",
    ("k1", "policy_gradient"): "reverse KL",
    ("k1", "back_propagated"): NOTHING,
    ("k2", "value"): "biased",
    ("k2", "policy_gradient"): "not a KL",
    ("k2", "back_propagated"): "reverse KL",
    ("k3", "value"): "reverse KL, unbiased",
    ("k3", "policy_gradient"): "reverse KL minus forward KL",
    ("k3", "back_propagated"): "forward KL",
    ("state_kl", "value"): "reverse KL, exact",
    ("state_kl", "policy_gradient"): NOTHING,
    ("state_kl", "back_propagated"): "reverse KL",
}
"""(estimator, use) -> what the expected gradient (or value) is. k1 = log p/q of the sampled token, k2 = k1^2 / 2,
k3 = q/p - 1 + log p/q; state_kl = a KL of the whole position, full or on a support: the same for every token."""

REFUSED: dict[tuple[str, str], str] = {
    ("k1", "back_propagated"): (
        "the expected gradient of a sampled log-ratio is 0, whatever the teacher: use it as a detached advantage "
        "(sampled.log_ratio_advantage), or back-propagate k2 or a full or top-K divergence"
    ),
    ("state_kl", "policy_gradient"): (
        "a KL of the whole position does not depend on the sampled token, so as its advantage the expected gradient is "
        "0: back-propagate it, or use the sampled log-ratio as the advantage"
    ),
    ("k2", "policy_gradient"): "the expected gradient is that of no KL: back-propagate k2, or use k1 as the advantage",
    ("k3", "policy_gradient"): (
        "the expected gradient is that of reverse KL MINUS forward KL: use k1 as the advantage, or back-propagate k2"
    ),
}
"""(estimator, use) -> why it is refused and what to do instead."""


def refuse_illegal_pair(estimator: str, use: str) -> None:
    """Raise ValueError, with the reason, for a pair in `REFUSED` and for an unknown name.

    >>> refuse_illegal_pair("k2", "back_propagated")
    """
    if (estimator, use) not in OPTIMISES:
        known = ", ".join(f"{e}/{u}" for e, u in OPTIMISES)
        raise ValueError(f"refuse_illegal_pair: expected one of {known}; got {estimator}/{use}")
    if (estimator, use) in REFUSED:
        raise ValueError(f"{estimator} used as {use}: {REFUSED[estimator, use]}")


def refuse_truncated_sampling(*, top_p: float, top_k: int, has_policy_gradient: bool, is_corrected: bool) -> None:
    """Refuse a policy-gradient signal on tokens from a truncated distribution whose kept mass is not corrected for.

    Args:    top_k: 0 for off.   is_corrected: log-probs are of the truncated distribution on every side.
    Raises:  ValueError, naming the setting.
    >>> refuse_truncated_sampling(top_p=0.9, top_k=0, has_policy_gradient=True, is_corrected=True)
    """
    if has_policy_gradient and not is_corrected and (top_p < 1.0 or top_k > 0):
        raise ValueError(
            f"top_p {top_p}, top_k {top_k}: the engine samples from a truncated distribution, the ratio is of the full "
            "one; set top_p 1.0 and top_k 0, or correct for the kept mass"
        )


def refuse_double_correction(*, ratio_against: str, has_importance_weight: bool) -> None:
    """Refuse an importance weight on top of a ratio that already starts at the behaviour policy.

    Args:    ratio_against: "proximal" or "behaviour".   Raises: ValueError.
    >>> refuse_double_correction(ratio_against="proximal", has_importance_weight=True)
    """
    if ratio_against not in ("proximal", "behaviour"):
        raise ValueError(f"ratio_against must be proximal or behaviour, got {ratio_against!r}")
    if ratio_against == "behaviour" and has_importance_weight:
        raise ValueError(
            "an importance weight (proximal / behaviour) with a ratio against the behaviour policy counts the same gap "
            "twice: take the ratio against the proximal policy, or leave the weight out"
        )
