"""Writes docs/estimators.md: what each estimator really optimises in each use, and a toy comparison.

    python tools/estimators_page.py [--check]          --check: exit status 1 if the page is stale

Part 1 is computed here with the functions of `codriver.signals`: float64, 8 tokens, exact expectations over the token
sampled from the student, four random pairs of student and teacher. Each result is compared with gradients that are
written out below and use no signal. Part 2 is benchmarks/results/estimators.json as a table.
Shape suffixes:  V vocabulary; `values_V[v]` is the estimator if token v was sampled.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from codriver.signals import divergence, legality, reference, reweight, sampled, support, surrogate, trust_region

sys.path.insert(0, str(Path(__file__).parent))  # run as a script, or imported by its test
from toy_page import toy  # noqa: E402

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "estimators.md", ROOT / "benchmarks" / "results" / "estimators.json"
V, K, STATES, POWER = 8, 3, 4, 0.4
SAME = 0.9999
"""A cosine above this in every state counts as the same direction."""


class State:
    """One position: logits of the student z (carry gradient), log-probs of teacher lq and of a reference, a list S."""

    def __init__(self, seed: int, *, agree: bool = False) -> None:
        g = torch.Generator().manual_seed(seed)
        z, zt, zr = (1.5 * torch.randn(V, generator=g, dtype=torch.float64) for _ in range(3))
        self.lq, self.lr = (z if agree else zt).log_softmax(-1), zr.log_softmax(-1)
        self.z = z.requires_grad_()
        self.lp = divergence.log_probs(self.z)
        self.p, self.q = self.lp.detach().exp(), self.lq.exp()
        self.ids = support.top_k_ids(self.lq, K)
        self.beyond = (2 * self.lq - self.lr).log_softmax(-1)

    def gradient(self, loss: Tensor) -> Tensor:
        found = torch.autograd.grad(loss, self.z, allow_unused=True, retain_graph=True)[0]
        return torch.zeros(V, dtype=torch.float64) if found is None else found


def kl(a: Tensor, b: Tensor) -> Tensor:
    """KL of two log-distributions, also of unequal mass, written out."""
    return (a.exp() * (a - b)).sum(-1)


def bucket(logp: Tensor, ids: Tensor) -> Tensor:
    p = logp.exp()
    return torch.cat([p[ids], (1 - p[ids].sum()).view(1)]).log()


def mixed(a: Tensor, b: Tensor, share: float) -> Tensor:
    return (share * a.exp() + (1 - share) * b.exp()).log()


def jsd(s: State, beta: float) -> Tensor:
    m = mixed(s.lq, s.lp, beta)
    return beta * kl(s.lq, m) + (1 - beta) * kl(s.lp, m)


# Objectives written out, differentiated exactly; a result is named after the first one it points along.
NAMED: dict[str, Callable[[State], Tensor]] = {
    "reverse KL": lambda s: kl(s.lp, s.lq),
    "forward KL": lambda s: kl(s.lq, s.lp),
    "reverse KL minus forward KL": lambda s: kl(s.lp, s.lq) - kl(s.lq, s.lp),
    "reverse KL to the extrapolated teacher": lambda s: kl(s.lp, s.beyond),
    "Jensen-Shannon 0.5": lambda s: jsd(s, 0.5),
    "Jensen-Shannon 0.1": lambda s: jsd(s, 0.1),
    "Jensen-Shannon 0.9": lambda s: jsd(s, 0.9),
    "reverse KL to the mixture": lambda s: kl(s.lp, mixed(s.lp, s.lq, 0.1)),
    "forward KL to the mixture": lambda s: kl(s.lq, mixed(s.lq, s.lp, 0.1)),
    "power divergence sum p^1.4 / 1.4 - p q^0.4": lambda s: (
        s.lp.exp() ** (1 + POWER) / (1 + POWER) - s.lp.exp() * s.q**POWER
    ).sum(),
    "reverse KL inside the list": lambda s: kl(s.lp[s.ids].log_softmax(-1), s.lq[s.ids].log_softmax(-1)),
    "reverse KL of list and rest": lambda s: kl(bucket(s.lp, s.ids), bucket(s.lq, s.ids)),
    "the list's part of reverse KL": lambda s: (s.lp.exp() * (s.lp - s.lq).detach())[s.ids].sum(),
    "the list's part of reverse KL, plus the mass on the list": lambda s: (s.lp.exp() * (1 + (s.lp - s.lq).detach()))[
        s.ids
    ].sum(),
    "forward KL inside the list": lambda s: kl(s.lq[s.ids].log_softmax(-1), s.lp[s.ids].log_softmax(-1)),
    "forward KL of list and rest": lambda s: kl(bucket(s.lq, s.ids), bucket(s.lp, s.ids)),
    "the list's part of forward KL": lambda s: (s.lp.exp() - s.q * s.lp)[s.ids].sum(),
    "forward KL from the cut teacher": lambda s: kl(s.lq[s.ids].log_softmax(-1), s.lp[s.ids]),
    "the list's part of the cross-entropy": lambda s: -(s.q * s.lp)[s.ids].sum(),
    "Jensen-Shannon of list and rest": lambda s: sum(
        0.5 * kl(x, mixed(bucket(s.lq, s.ids), bucket(s.lp, s.ids), 0.5))
        for x in (bucket(s.lq, s.ids), bucket(s.lp, s.ids))
    ),
}


@dataclass(frozen=True)
class Row:
    """An estimator as a cost: `values(s)` is what is minimised, of each token that may be sampled."""

    label: str
    function: str
    values: Callable[[State], Tensor]
    legal_name: str = ""
    """In `legality`; a KL of the whole position is "state_kl"."""
    is_loss: bool = False
    """Meant to be differentiated: it holds the policy gradient already, or has no meaning as a value."""


def each(x: Tensor) -> Tensor:
    return x.expand(V)


def straight_k1(s: State) -> Tensor:
    """k1 with its gradient put back: the function refuses a log-prob that carries one."""
    return reference.kl_estimate(s.lp.detach(), s.lq, kind="k1") + s.lp - s.lp.detach()


def on_list(kind: str, remainder: str) -> Callable[[State], Tensor]:
    function = {"reverse": support.support_reverse_kl, "forward": support.support_forward_kl}[kind]
    return lambda s: each(function(s.lp[s.ids], s.lq[s.ids], remainder=remainder))


def on_list_and_token(s: State) -> Tensor:
    ids = support.with_sampled_ids(s.ids.expand(V, K), torch.arange(V))
    logps = (support.gather_logp(x.expand(V, V), ids) for x in (s.lp, s.lq))
    return support.support_reverse_kl(*logps, remainder="renormalize")


def trusted_policy(s: State) -> Tensor:
    policy = surrogate.clipped(s.lp, s.lp.detach(), sampled.log_ratio_advantage(s.lq, s.lp))
    outlier = each(support.support_cross_entropy(s.lp[s.ids], s.lq[s.ids]))
    return trust_region.outlier_forward_kl(policy, outlier, trust_region.acceptance(s.lp, s.lq))


def cost(name: str, how: Callable[[State], Tensor]) -> tuple[str, Callable[[State], Tensor]]:
    return name, lambda s: -how(s)


def log_ratio(s: State) -> Tensor:
    return sampled.log_ratio_advantage(s.lq, s.lp)


def top_k(remainder: str, kind: str) -> Row:
    label = f"top-{K} {kind} KL, `{remainder}`"
    return Row(label, f"support.support_{kind}_kl", on_list(kind, remainder), "state_kl")


ROWS = {
    "Of the sampled token": [
        Row("k1 = log p/q", "reference.kl_estimate", straight_k1, "k1"),
        Row("k2 = k1² / 2", "reference.kl_estimate", lambda s: reference.kl_estimate(s.lp, s.lq, kind="k2"), "k2"),
        Row("k3 = q/p - 1 + k1", "reference.kl_estimate", lambda s: reference.kl_estimate(s.lp, s.lq, kind="k3"), "k3"),
        Row("log-ratio advantage (OPD)", *cost("sampled.log_ratio_advantage", log_ratio)),
        Row("log-ratio with the state's KL as baseline (vOPD)", *cost("sampled.state_baseline_advantage",
            lambda s: sampled.state_baseline_advantage(s.lq, s.lp, each(divergence.reverse_kl(s.z, s.lq))))),
        Row("log-ratio clipped at 1 nat", *cost("sampled.bounded_clip",
            lambda s: sampled.log_ratio_advantage(s.lq, s.lp, clip=1.0))),
        Row("log-ratio, log bound", *cost("sampled.bounded_log", lambda s: sampled.bounded_log(log_ratio(s)))),
        Row("log-ratio, floor at mixing 0.2 (REOPOLD)", *cost("sampled.bounded_floor",
            lambda s: sampled.bounded_floor(log_ratio(s), mixing=0.2))),
        Row(f"difference of powers {POWER} (PowerOPD)", *cost("sampled.bounded_power",
            lambda s: sampled.bounded_power(s.lq, s.lp, power=POWER))),
        Row("log-ratio beyond the teacher, strength 2 (G-OPD)", *cost("sampled.extrapolated_advantage",
            lambda s: sampled.extrapolated_advantage(s.lq, s.lp, s.lr, strength=2.0))),
        Row("log-ratio, outliers masked in expectation (TrOPD)", *cost("trust_region.mask_outliers",
            lambda s: trust_region.mask_outliers(log_ratio(s), trust_region.acceptance(s.lp, s.lq)))),
        Row(f"log-ratio, top-{K} cross-entropy on outliers (TrOPD)", "trust_region.outlier_forward_kl", trusted_policy,
            is_loss=True),
        Row("k2 next to an outcome of 0 (KDRL)", "reweight.kdrl_loss",
            lambda s: reweight.kdrl_loss(each(0 * s.lp.sum()), s.lp, s.lq, coefficient=1.0), "k2"),
    ],
    "Of the whole position, full vocabulary": [
        Row("reverse KL", "divergence.reverse_kl", lambda s: each(divergence.reverse_kl(s.z, s.lq)), "state_kl"),
        Row("forward KL", "divergence.forward_kl", lambda s: each(divergence.forward_kl(s.z, s.lq)), "state_kl"),
        Row("cross-entropy", "divergence.cross_entropy", lambda s: each(divergence.cross_entropy(s.z, s.lq)),
            "state_kl"),
        *(Row(f"Jensen-Shannon, beta {beta}", "divergence.jensen_shannon",
              lambda s, beta=beta: each(divergence.jensen_shannon(s.z, s.lq, beta=beta)), "state_kl")
          for beta in (0.1, 0.5, 0.9)),
        Row("skewed reverse KL, 0.1", "divergence.skewed_reverse_kl",
            lambda s: each(divergence.skewed_reverse_kl(s.z, s.lq)), "state_kl"),
        Row("skewed forward KL, 0.1", "divergence.skewed_forward_kl",
            lambda s: each(divergence.skewed_forward_kl(s.z, s.lq)), "state_kl"),
    ],
    f"Of the whole position, the teacher's top {K} of {V} tokens": [
        *(top_k(remainder, "reverse") for remainder in support.REMAINDERS),
        *(top_k(remainder, "forward") for remainder in support.REMAINDERS),
        Row(f"top-{K} Jensen-Shannon, `tail`", "support.support_jensen_shannon",
            lambda s: each(support.support_jensen_shannon(s.lp[s.ids], s.lq[s.ids])), "state_kl"),
        Row(f"top-{K} and the sampled token, reverse KL, `renormalize`", "support.with_sampled_ids",
            on_list_and_token, is_loss=True),
        Row(f"top-{K} cross-entropy", "support.support_cross_entropy",
            lambda s: each(support.support_cross_entropy(s.lp[s.ids], s.lq[s.ids])), "state_kl"),
        Row(f"top-{K} forward KL, teacher cut, student in full (BRTS)", "support.truncated_forward_kl",
            lambda s: each(support.truncated_forward_kl(s.lp[s.ids], s.lq[s.ids])), "state_kl"),
        Row(f"bare sum of p log p/q over the top {K} (not offered)", "-",
            lambda s: each((s.lp.exp() * (s.lp - s.lq))[s.ids].sum()), "state_kl"),
    ],
}  # fmt: skip


def measured(row: Row, use: str, s: State) -> Tensor:
    """The expected value, or the expected gradient in the logits, with the token sampled from the student."""
    values_V = row.values(s)
    if use == "value":
        return (s.p * values_V.detach()).sum()
    if use == "policy_gradient":
        values_V = surrogate.clipped(s.lp, s.lp.detach(), -values_V.detach())
    return s.gradient((s.p * values_V).sum()) if values_V.requires_grad else torch.zeros(V, dtype=torch.float64)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()).clamp(min=1e-300))


def verdict(row: Row, use: str) -> str:
    """One cell of the table."""
    states = [State(seed) for seed in range(STATES)]
    found = [measured(row, use, s) for s in states]
    if use == "value":
        return value_verdict(found, states)
    if use == "back_propagated" and not row.values(states[0]).requires_grad:
        return "no gradient: a constant"
    if max(float(x.norm()) for x in found) < 1e-9:
        return "**nothing**: 0"
    cosines, ratios = {}, {}
    for name, objective in NAMED.items():
        exact = [s.gradient(objective(s)) for s in states]
        cosines[name] = min(cosine(a, b) for a, b in zip(found, exact, strict=True))
        ratios[name] = [float(a.norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
    sides = f"cosine to reverse {cosines['reverse KL']:.4f}, to forward {cosines['forward KL']:.4f}"
    for name, cos in cosines.items():
        if cos > SAME:
            own = f"cosine {cos:.4f}"
            scale = f", × {ratios[name][0]:.4f}" if max(abs(r - 1) for r in ratios[name]) > 1e-6 else ", × 1"
            aside = "" if name in ("reverse KL", "forward KL") else f"; {sides}"
            return f"**{name}** ({own}{scale}{aside})"
    return f"none of the named ({sides})"


def value_verdict(found: list[Tensor], states: list[State]) -> str:
    if max(abs(float(x)) for x in found) < 1e-9:
        return "0"
    for name, objective in NAMED.items():
        if max(abs(float(x - objective(s).detach())) for x, s in zip(found, states, strict=True)) < 1e-9:
            return name
    ratios = [float(x / NAMED["reverse KL"](s).detach()) for x, s in zip(found, states, strict=True)]
    return f"{min(ratios):.2f} to {max(ratios):.2f} of reverse KL"


def rests_at_the_teacher(row: Row) -> str:
    """Whether the use that trains has gradient 0 where student and teacher agree."""
    s = State(0, agree=True)
    uses = ("back_propagated",) if row.is_loss or row.legal_name == "state_kl" else ("policy_gradient",)
    return "yes" if all(float(measured(row, use, s).norm()) < 1e-9 for use in uses) else "no"


def table(rows: list[Row]) -> list[str]:
    lines = ["| estimator | function | as a value | as policy-gradient cost | back-propagated | rests at the teacher |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        cells = []
        for use in legality.USES:
            cell = "-" if row.is_loss and use != "back_propagated" else verdict(row, use)
            refused = (row.legal_name, use) in legality.REFUSED
            cells.append(f"refused; {cell}" if refused else cell)
        name = row.function if row.function == "-" else f"`{row.function}`"
        lines.append(f"| {row.label} | {name} | {' | '.join(cells)} | {rests_at_the_teacher(row)} |")
    return lines


HEAD = f"""# Estimators: what each one really optimises

Written by `tools/estimators_page.py`; `tests/test_estimators_page.py` fails when it is stale. p is the student, q the teacher.

## In expectation
Computed with the functions of `codriver.signals` in float64: {V} tokens, {STATES} random pairs of student and teacher, exact expectations over the token sampled from the student. Three uses of one number:

- **as a value**: measured and averaged;
- **as policy-gradient cost**: detached, and minus it is the advantage of the sampled token (for an advantage, the cost is minus the advantage);
- **back-propagated**: differentiated as a loss.

Bold is the objective whose exact gradient it points along: cosine above {SAME} in each pair, the lowest shown, and the factor in length. "Nothing" is an expected gradient of 0: the teacher is not heard, whatever it says. "Refused" stands before what would happen: the recipe, or the function, does not allow that use (`signals/legality.py` has the reasons). "Rests at the teacher": the use that trains has gradient 0 where student and teacher agree. The list of top-K rows is the teacher's; with a list of all {V} tokens each becomes its full form.
"""  # noqa: E501


def page() -> str:
    torch.set_num_threads(1)
    lines = [HEAD]
    for title, rows in ROWS.items():
        lines += [f"### {title}", *table(rows), ""]
    return "\n".join([*lines, *toy(json.loads(RESULTS.read_text()))]) + "\n"


def main() -> int:
    wanted = page()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
