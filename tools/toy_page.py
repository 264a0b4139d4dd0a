"""Part 2 of docs/estimators.md: benchmarks/results/estimators.json as tables, and beside what was claimed before it."""

ORDER = "sums in another order, amplified: a change of 1e-13 in the first logits moves these ten seeds by"
DEVIATIONS = {
    "kdrl": "GRPO's term is divided by the unbiased deviation (n - 1), the script's by the biased one: 1.6 % less",
    "opd_rtg": f"{ORDER} 0.0007",
    "kladv": f"nothing is learned and the policy wanders on sampling noise; {ORDER} 0.08",
    "k1dir": f"nothing is learned and the policy wanders on sampling noise; {ORDER} 0.02",
}
"""Why a mean over the script's ten seeds differs by more than its printed rounding."""


def toy(results: dict) -> list[str]:
    steps = ("5", "20", "80", "320")
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [
        "## In training: a toy",
        f"`benchmarks/estimators.py`: {results['seeds']} seeds, {results['seconds']} s on {results['threads']} thread, "
        f"{versions}, commit {results['commit']}. A task of 4 tokens from 8; student and teacher are tables of logits, "
        f"one row per prefix, {results['steps']} steps of Adam at {results['learning_rate']}. This ranks estimators, "
        "not methods: nothing generalises. Figures: exact expected reward at a step, mean ± 95 % interval of the mean; "
        "median and largest norm of the gradient, mean over seeds. Last column: the numpy script redone here draws the "
        "same rollouts; largest distance of the means over its ten seeds, over all logged steps. It prints three "
        "digits, so 0.0005 is agreement.",
    ]
    for name, part in results["tables"].items():
        lines += ["", f"### {name}. {part['title'][0].upper()}{part['title'][1:]} (teacher {part['teacher']:.3f})"]
        lines += ["| method | " + " | ".join(f"step {s}" for s in steps) + " | gradient, median / max | to numpy |"]
        lines += ["|---|" + "---:|" * (len(steps) + 2)]
        for m in part["methods"].values():
            cells = [f"{m['reward'][s]['mean']:.3f} ± {m['reward'][s]['half_width'] or 0:.3f}" for s in steps]
            cells.append(f"{m['norm_median']:.3f} / {m['norm_max']:.3f}")
            cells.append(f"{distance(m):.4f}" if "numpy" in m else "-")
            lines.append(f"| {m['label']} | {' | '.join(cells)} |")
    lines += ["", "### Beside what was claimed", *claims(results)]
    lines += ["", "### Where the two differ"]
    for name, part in results["tables"].items():
        for key, m in part["methods"].items():
            if "numpy" in m and distance(m) > 0.00056:
                lines.append(f"- {name}, {m['label']} ({distance(m):.4f}): {DEVIATIONS[key]}.")
    return lines


def distance(method: dict) -> float:
    return max(abs(method["reward"][step]["mean_10"] - x) for step, x in method["numpy"].items())


CLAIMS = (
    ("renormalised top-2 stalls", (("A", "lsmT@2", "320", 0.594),)),
    ("renormalised top-4 stalls higher", (("A", "lsmT@4", "320", 0.721),)),
    ("the full reverse KL gets to the teacher", (("A", "full", "320", 0.986),)),
    ("the sampled token on the list repairs it", (("A", "lsmT+y@2", "320", 0.935),)),
    ("so does a tail bucket, nearly", (("A", "tailT@2", "320", 0.899),)),
    ("success at random 11 %: RL climbs faster", (("A", "grpo", "20", 0.968), ("A", "opd", "20", 0.197))),
    (
        "success at random 0.1 %: OPD and the full KL climb faster",
        (("C", "grpo", "20", 0.147), ("C", "opd", "20", 0.516), ("C", "full", "20", 0.960)),
    ),
    (
        "OPD ends at the teacher's level, both together beyond",
        (("C", "opd", "320", 0.967), ("C", "kdrl", "320", 0.998)),
    ),
)
"""Findings of `methods.md` section 0, points 5 and 6 (ten seeds of the numpy script): (table, method, step, figure)."""


def claims(results: dict) -> list[str]:
    """Each claimed figure beside ours."""
    lines = ["| claim (ten seeds of the numpy script) | claimed | here |", "|---|---|---|"]
    for text, figures in CLAIMS:
        theirs, ours = [], []
        for table, key, step, figure in figures:
            method = results["tables"][table]["methods"][key]
            found = method["reward"][step]
            theirs.append(f"{method['label']} {figure:.3f}")
            ours.append(f"{found['mean']:.3f} ± {found['half_width'] or 0:.3f}")
        lines.append(f"| {text} | {'; '.join(theirs)} | {'; '.join(ours)} |")
    return lines
