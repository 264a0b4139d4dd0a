"""The three arms of the quickstart over several seeds: every figure with its interval, into benchmarks/results/.

    python benchmarks/quickstart_seeds.py [--seeds 5] [--first 1] [--runs runs/seeds] [key=value ...]

Each seed changes everything that is random: the first weights, the problems, the sampling. Intervals are 95 %
t-intervals of the mean over seeds. The recipe is the one that ships; its settings were chosen on seed 0, which is why
the benchmark begins with seed 1. A seed whose folder is there
already is resumed, so the benchmark survives a kill.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95 % quantile of Student's t with n - 1 degrees of freedom."""


def run_seed(recipe: Path, seed: int, folder: Path, overrides: list[str]) -> dict:
    """The comparison of one seed, run or resumed unless it is there already."""
    if (folder / "comparison.json").exists():
        return json.loads((folder / "comparison.json").read_text())
    command = [sys.executable, "-m", "codriver.cli", "train", str(recipe), f"seed={seed}", f"output_dir={folder}"]
    resume = ["--resume"] if folder.exists() else []
    subprocess.run([*command, *overrides, *resume, "--json"], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return json.loads((folder / "comparison.json").read_text())


def level(folder: Path, stage: str) -> dict:
    """Where a stage stands on the arms' own problems: of the cold start and of the teacher."""
    arm = json.loads((folder / "comparison.json").read_text())["arms"][0]
    command = [sys.executable, "-m", "codriver.cli", "evaluate", str(folder), "--json", "--stage"]
    first = yaml.safe_load((folder / "stages" / arm / "recipe.yaml").read_text())["tasks"][0]
    overrides = [f"tasks=[{json.dumps(first)}]", "evaluate.sets={}", "teachers={}"]
    done = subprocess.run([*command, stage, *overrides], check=True, cwd=ROOT, capture_output=True, text=True)
    return {k: v for k, v in json.loads(done.stdout).items() if "accuracy" in k or "pass_at" in k}


def interval(values: list[float]) -> dict:
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return {"mean": mean, "half_width": None, "values": values}
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return {"mean": mean, "half_width": T_95[n] * deviation / math.sqrt(n), "values": values}


def summarise(comparisons: list[dict]) -> dict:
    """Per arm and figure: mean and interval. `steps_to_target` counts seeds that reached it and gives those alone."""
    out: dict = {}
    for arm in comparisons[0]["arms"]:
        rows = [next(row for row in c["rows"] if row["stage"] == arm) for c in comparisons]
        out[arm] = {}
        for key in rows[0]:
            if key in ("stage", "target"):
                continue
            known = [row[key] for row in rows if row[key] is not None]
            out[arm][key] = interval(known) if known else {"mean": None, "half_width": None, "values": []}
            if key == "steps_to_target":
                out[arm][key] |= {"reached": len(known), "seeds": len(rows), "by_seed": [row[key] for row in rows]}
    return out


def summary(rows: list[dict]) -> dict:
    return {key: interval([row[key] for row in rows]) for key in rows[0]}


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="first seed; settings were chosen on seed 0")
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "quickstart.yaml")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "seeds")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "quickstart_seeds.json")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    start, comparisons = time.time(), []
    levels: dict = {"cold-start": [], "teacher": []}
    for seed in range(args.first, args.first + args.seeds):
        comparisons.append(run_seed(args.recipe, seed, args.runs / f"seed{seed}", args.overrides))
        for stage in levels:
            levels[stage].append(level(args.runs / f"seed{seed}", stage))
        print(f"seed {seed} done after {time.time() - start:.0f} s", file=sys.stderr, flush=True)
        result = {
            "recipe": args.recipe.read_text(),
            "overrides": args.overrides,
            "seeds": list(range(args.first, seed + 1)),
            "arms": summarise(comparisons),
            "before": {stage: summary(levels[stage]) for stage in levels},
            "machine": f"{platform.machine()}, {platform.python_version()}",
            "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
            "commit": commit(),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
