"""`make smoke`: every recipe that ships, two steps a stage, with its student, or a tiny one where that is not here."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def overrides(recipe: Path, out: Path) -> list[str]:
    tree = yaml.safe_load(recipe.read_text())
    small = {"steps": 2, "evaluate.every": 1, "evaluate.prompts": 2, "evaluate.final_prompts": 2, "checkpoint.every": 1}
    words = [f"{key}={value}" for key, value in small.items()] + [f"output_dir={out}"]
    for stage in tree.get("stages") or []:
        words += [f"stages.{stage['name']}.{key}={value}" for key, value in small.items()]
    model = tree["student"]["model"]
    if not model.startswith("tiny:") and not (ROOT / model).exists():
        words.append("student.model=tiny:llama-200k")
    return words


def main() -> int:
    failed = []
    for recipe in sorted((ROOT / "recipes").glob("*.yaml")):
        out = Path(tempfile.mkdtemp(prefix="codriver-smoke-")) / "run"
        command = [sys.executable, "-m", "codriver.cli", "train", str(recipe), *overrides(recipe, out), "--json"]
        print(f"== {recipe.name}", flush=True)
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode != 0:
            failed.append(recipe.name)
        shutil.rmtree(out.parent, ignore_errors=True)
    print("failed: " + ", ".join(failed) if failed else "every recipe ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
