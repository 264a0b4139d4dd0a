"""The whole thing, on a model of 0.2 M parameters: stages, kills, resumption, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from codriver.cli import read_plan
from codriver.errors import InputError
from codriver.observe.run_folder import RunFolder
from codriver.pipeline import run_plan

RECIPE = {
    "name": "demo",
    "threads": 1,
    "student": {"model": "tiny:llama-200k"},
    "tasks": [{"task": "arithmetic", "operands": 2, "max_number": 3}],
    "optimizer": {"learning_rate": 5.0e-3},
    "supervised": {"batch_size": 8},
    "rollout": {"prompts_per_step": 2, "num_generations": 4, "max_completion_length": 12},
    "evaluate": {"prompts": 4, "every": 2, "samples": 2},
    "checkpoint": {"every": 2, "keep": 3},
    "records": {"every": 2},
    "stages": [
        {"name": "cold", "kind": "sft", "steps": 6},
        {
            "name": "both", "steps": 5, "student": {"model": "stage:cold"},
            "teachers": {"own": {"model": "student", "hint": "{solution}"}},
            "signals": {"distill": {"coef": 1.0}, "reference": {"coef": 0.1}},
        },
    ],
    "compare": {"stages": ["both"]},
}  # fmt: skip

PLAIN = {"stages": [], "compare": None, "supervised": {}, "steps": 1}


class Silent:
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def stage(self, recipe, *, first_step):
        return lambda step, metrics: None


def plan_for(tmp_path, **changes):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE | {"output_dir": str(tmp_path / "run")} | changes))
    return path


def run(tmp_path, *, resume=False, interrupted=lambda: False, **changes):
    show = Silent()
    return run_plan(
        read_plan(str(plan_for(tmp_path, **changes)), []), resume=resume, show=show, interrupted=interrupted
    ), show


def figures(folder: Path):
    """Everything measured that is not a clock."""
    rows = RunFolder(folder).rows()
    return [{k: v for k, v in row.items() if not k.startswith(("time", "throughput"))} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never killed."""
    tmp_path = tmp_path_factory.mktemp("whole")
    return run(tmp_path)[0].root


def test_a_staged_recipe_leaves_a_run_folder_per_stage_a_comparison_and_a_report(whole):
    for stage in ("cold", "both"):
        names = {p.name for p in (whole / "stages" / stage).iterdir()}
        assert {
            "recipe.yaml",
            "environment.json",
            "metrics.jsonl",
            "events.jsonl",
            "checkpoints",
            "final",
            "tokens",
            "episodes",
        } <= names
    (row,) = json.loads((whole / "comparison.json").read_text())["rows"]
    assert row["stage"] == "both" and row["tokens_generated"] > 0 and "eval/arithmetic/pass_at_2" in row
    assert (whole / "report.html").stat().st_size < 10e6


def test_final_weights_load_with_plain_transformers(whole):
    final = whole / "stages" / "both" / "final"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(final), AutoTokenizer.from_pretrained(final)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2="}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=3, do_sample=False)
    assert out.shape[1] <= ids["input_ids"].shape[1] + 3


def test_learning_from_solutions_lowers_their_loss(whole):
    losses = [
        row["signal/supervised/loss"] for row in RunFolder(whole / "stages" / "cold").rows() if row["row"] == "training"
    ]
    assert losses[-1] < 0.8 * losses[0]


def test_on_policy_the_learner_agrees_with_the_sampler(whole):
    rows = [row for row in RunFolder(whole / "stages" / "both").rows() if row["row"] == "training"]
    assert all(row["policy/kl_behaviour"] < 1e-6 and row["policy/ratio_max"] < 1.001 for row in rows)
    assert rows[0]["policy/kl_reference"] == pytest.approx(0, abs=1e-5)


def test_arms_that_start_from_the_same_stage_draw_the_same_prompts_and_first_rollouts(tmp_path):
    arms = [RECIPE["stages"][0], *({"name": n, "steps": 1, "student": {"model": "stage:cold"}} for n in ("x", "y"))]
    root = run(tmp_path, stages=arms, compare=None)[0].root
    x, y = (figures(root / "stages" / n) for n in ("x", "y"))
    assert x == y


@pytest.mark.parametrize("moment", ["mid-step", "boundary"])
def test_a_run_killed_with_sigkill_and_resumed_measures_what_an_unkilled_one_does(whole, tmp_path, moment):
    recipe = plan_for(tmp_path)
    metrics = tmp_path / "run" / "stages" / "both" / "metrics.jsonl"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "codriver.cli", "train", str(recipe)],
        env=env,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    wanted = "checkpoint" if moment == "boundary" else '"step": 2, "row": "training"'
    watched = metrics.with_name("events.jsonl") if moment == "boundary" else metrics
    deadline = time.time() + 240
    while not (watched.exists() and wanted in watched.read_text()):
        assert process.poll() is None and time.time() < deadline, "the run ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    outcome, _ = run(tmp_path, resume=True)
    for stage in ("cold", "both"):
        assert figures(outcome.root / "stages" / stage) == figures(whole / "stages" / stage)


def test_a_truncated_checkpoint_is_passed_over_for_the_one_before_it(whole, tmp_path):
    pressed = []

    def interrupted():
        pressed.append(1)
        return len(pressed) == 6 + 3  # publishes of `cold`, then three of `both`

    with pytest.raises(Exception, match="interrupted after step 2; go on with the same command and --resume"):
        run(tmp_path, interrupted=interrupted)
    newest = tmp_path / "run" / "stages" / "both" / "checkpoints" / "step_00003" / "trainer.pt"
    newest.write_bytes(newest.read_bytes()[:-10])
    outcome, show = run(tmp_path, resume=True)
    assert any("step_00003 is damaged: trainer.pt" in note and "the one before it" in note for note in show.notes)
    assert figures(outcome.root / "stages" / "both") == figures(whole / "stages" / "both")


def test_an_existing_folder_is_refused_and_a_done_stage_is_not_done_again(whole, tmp_path):
    outcome, _ = run(tmp_path, stages=RECIPE["stages"][:1], compare=None)
    with pytest.raises(InputError, match=r"exists already; add --resume .* or set output_dir"):
        run(tmp_path)
    before = (outcome.root / "stages" / "cold" / "metrics.jsonl").read_text()
    again, show = run(tmp_path, resume=True)
    assert "cold: done already" in show.notes
    assert (outcome.root / "stages" / "cold" / "metrics.jsonl").read_text() == before
    assert figures(again.root / "stages" / "both") == figures(whole / "stages" / "both")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_run_that_was_refused_before_its_first_figure_does_not_block_the_next(tmp_path):
    with pytest.raises(InputError, match="torch sees no GPU"):
        run(tmp_path, student={"model": "tiny:llama-200k", "device": "cuda"}, **PLAIN)
    run(tmp_path, **PLAIN)


def test_a_folder_of_something_else_is_not_taken(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="exists already"):
        run(tmp_path)


def test_an_output_folder_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(InputError, match="output_dir: /proc/none cannot be written"):
        run(tmp_path, output_dir="/proc/none", **PLAIN)


def test_a_changed_recipe_is_not_resumed(tmp_path):
    run(tmp_path, stages=RECIPE["stages"][:1], compare=None)
    with pytest.raises(InputError, match="the recipe is not the one this run was started with"):
        run(tmp_path, resume=True, stages=[RECIPE["stages"][0] | {"steps": 7}], compare=None)


def test_a_prompt_longer_than_the_context_is_named(tmp_path):
    with pytest.raises(
        InputError,
        match=r"prompt arithmetic/heldout/.*: 6 tokens, but rollout.max_prompt_length is 2; raise it or drop the prompt",
    ):
        run(
            tmp_path,
            supervised={},
            stages=[],
            compare=None,
            rollout=RECIPE["rollout"] | {"max_prompt_length": 2, "max_completion_length": 1},
            steps=1,
        )
