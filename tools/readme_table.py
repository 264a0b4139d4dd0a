"""Writes the five-seed table of the README from benchmarks/results/quickstart_seeds.json; `--check` only compares."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "quickstart_seeds.json"
BEGIN = "<!-- quickstart_seeds: written by tools/readme_table.py from benchmarks/results/quickstart_seeds.json -->\n"
END = "<!-- /quickstart_seeds -->"
ROWS = (
    ("eval/arithmetic/accuracy", "held-out accuracy", 100, "%"),
    ("eval/arithmetic/pass_at_4", "held-out pass@4", 100, "%"),
    ("eval/longer/accuracy", "accuracy, one operand longer", 100, "%"),
    ("eval/longer/pass_at_4", "pass@4, one operand longer", 100, "%"),
    ("steps_to_target", "steps to 50 %", 1, ""),
    ("mean_length", "mean length, tokens", 1, ""),
    ("tokens_generated", "tokens generated, thousands", 0.001, ""),
    ("time/rollout", "seconds of rollout", 1, ""),
    ("time/teacher", "seconds of teacher", 1, ""),
    ("time/learn", "seconds of learning", 1, ""),
)


def table(results: dict) -> str:
    arms = results["arms"]
    lines = ["| | " + " | ".join(arms) + " |", "|---|" + "---:|" * len(arms)]
    for key, label, factor, unit in ROWS:
        lines.append(f"| {label} | " + " | ".join(cell(arms[arm][key], factor, unit) for arm in arms) + " |")
    return "\n".join(lines) + "\n"


def cell(figure: dict, factor: float, unit: str) -> str:
    if figure["mean"] is None:
        return "not reached"
    text = f"{figure['mean'] * factor:.1f}"
    if figure["half_width"] is not None:
        text += f" ± {figure['half_width'] * factor:.1f}"
    text += f" {unit}" if unit else ""
    if "reached" in figure and figure["reached"] < figure["seeds"]:
        text += f" ({figure['reached']} of {figure['seeds']} seeds)"
    return text


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    wanted = before + BEGIN + table(json.loads(RESULTS.read_text())) + END + after
    if "--check" in sys.argv:
        return int(wanted != text)
    readme.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
