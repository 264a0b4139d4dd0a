"""docs/methods.md is read as a list of recipes: each row is accepted, trains, and names a function and a test that exist."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

from codriver.cli import read_plan
from codriver.observe.run_folder import RunFolder
from codriver.pipeline import run_stage

ROOT = Path(__file__).parents[1]
ROWS = re.findall(
    r"^\| (.+?) \| (`.+?`) \| `(\w+)\.(\w+)` \| `(\w+\.py)` \|$",
    (ROOT / "docs" / "methods.md").read_text(),
    re.MULTILINE,
)
BASE = {
    "name": "form",
    "threads": 1,
    "student": {"model": "tiny:llama-200k"},
    "teachers": {"expert": {"model": "tiny:qwen2"}},
    "tasks": [{"task": "arithmetic", "operands": 2, "max_number": 3}],
    "rollout": {"prompts_per_step": 2, "num_generations": 3, "max_completion_length": 8},
    "evaluate": {"every": 0, "prompts": 1, "samples": 1},
    "checkpoint": {"every": 0},
    "records": {"every": 0},
    "optimizer": {"learning_rate": 1.0e-3},
    "steps": 2,
}


class Silent:
    def note(self, text):
        pass

    def stage(self, recipe, *, first_step):
        return lambda step, metrics: None


def test_the_page_has_its_rows():
    assert len(ROWS) >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_method_is_accepted_trains_and_names_what_exists(row, tmp_path):
    _, keys, module, function, test = row
    assert callable(getattr(importlib.import_module(f"codriver.signals.{module}"), function))
    assert (ROOT / "tests" / "signals" / test).exists()
    overrides = re.findall(r"`(.+?)`", keys)
    asks_teacher = any(word in key for key in overrides for word in ("distill", "teachers", "reweight"))
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(BASE if asks_teacher else {k: v for k, v in BASE.items() if k != "teachers"})
    )
    (stage,) = read_plan(str(tmp_path / "recipe.yaml"), overrides).stages
    folder = RunFolder(tmp_path / "run")
    run_stage(stage, folder=folder, finals={}, show=Silent())
    rows = [r for r in folder.rows() if r["row"] == "training"]
    assert len(rows) == 2 and all(r["loss"] is not None and r["policy/grad_norm"] is not None for r in rows)
    if "signals.distill.coef=1" in overrides:
        assert all(r["policy/grad_norm"] > 0 and r["signal/distill/token_frac"] == 1 for r in rows)
