import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from codriver.cli import shipped_recipes
from tests.test_pipeline import RECIPE

ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}


def codriver(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "codriver.cli", *map(str, words)], env=ENV, capture_output=True, text=True, **options
    )


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE | {"output_dir": str(tmp_path / "run")}))
    return path


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_passes_its_dry_run(name):
    done = codriver("train", name, "--dry-run", "student.model=tiny:llama-200k")
    assert done.returncode == 0, done.stderr
    assert "nothing was loaded" in done.stdout


def test_a_dry_run_shows_every_stage_with_its_student_and_teacher(recipe):
    done = codriver("train", recipe, "--dry-run")
    for text in (
        "cold",
        "both",
        "stage:cold",
        "own (student)",
        "1 outcome + 1 distill + 0.1 reference",
        "2 x 4 rollouts",
    ):
        assert text in done.stdout
    assert json.loads(codriver("train", recipe, "--dry-run", "--json").stdout)["stages"][1]["name"] == "both"


@pytest.mark.parametrize("words", [["--help"], ["train", "RECIPE", "--dry-run"], ["train", "RECIPE", "seed=-1"]])
def test_torch_is_not_imported_before_a_recipe_is_accepted(recipe, words):
    program = "import sys; from codriver.cli import main\ntry: main()\nexcept SystemExit: pass\nprint('torch' in sys.modules, file=sys.stderr)"
    words = [str(recipe) if w == "RECIPE" else w for w in words]
    done = subprocess.run([sys.executable, "-c", program, *words], env=ENV, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "False"


def test_exit_codes_and_messages_without_a_traceback(recipe, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for words, code, message in (
        (["train", "none.yaml"], 2, "recipe none.yaml does not exist"),
        (["train", recipe, "tasks.0.operands=x", "nonsense=1"], 2, "2 problems"),
        (["train", recipe, f"output_dir={tmp_path / 'taken'}"], 2, "exists already; add --resume"),
        (["train"], 2, "Missing argument"),
        (["report", tmp_path], 2, "is not a run folder"),
        (["recipes", "none"], 2, "no recipe 'none' ships"),
        (["evaluate", recipe], 2, "give the run's folder instead"),
    ):
        done = codriver(*words)
        assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (code, True, False), (
            words,
            done.stderr,
        )


def test_recipes_are_listed_with_a_line_each_and_copied(tmp_path):
    done = codriver("recipes")
    assert done.stdout.splitlines()[0].startswith("quickstart ")
    codriver("recipes", "quickstart", "--to", tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").read_text() == shipped_recipes()["quickstart"].read_text()
    assert codriver("recipes", "quickstart", "--to", tmp_path / "mine.yaml").returncode == 2


def test_ctrl_c_saves_and_says_how_to_go_on_and_the_run_can_be_evaluated_and_reported(recipe, tmp_path):
    command = [
        sys.executable,
        "-m",
        "codriver.cli",
        "train",
        str(recipe),
        "stages.cold.steps=400",
        "stages.both.steps=1",
    ]
    process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "stages" / "cold" / "metrics.jsonl"
    deadline = time.time() + 120
    while not (metrics.exists() and '"step": 3, "row": "training"' in metrics.read_text()):
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "finishing this step, then saving" in errors
    assert "go on with the same command and --resume" in errors and "Traceback" not in errors
    assert codriver("report", tmp_path / "run").returncode == 0
    assert "no final weights yet" in codriver("evaluate", tmp_path / "run").stderr


def test_a_finished_run_is_evaluated_from_its_folder(recipe, tmp_path):
    done = codriver("train", recipe, "stages.cold.steps=2", "stages.both.steps=1", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["comparison"][0]["stage"] == "both" and os.path.exists(facts["report"])
    measured = json.loads(codriver("evaluate", tmp_path / "run", "--stage", "both", "--json").stdout)
    assert measured["eval/arithmetic/accuracy"] == facts["comparison"][0]["eval/arithmetic/accuracy"]
    assert "its stages: cold, both" in codriver("evaluate", tmp_path / "run", "--stage", "none").stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_disk_that_is_full_while_logging_is_named_without_a_traceback(recipe, tmp_path):
    folder = tmp_path / "run" / "stages" / "cold"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").symlink_to("/dev/full")
    program = (
        "import os; from codriver import cli; from codriver.observe import run_folder\n"
        "run_folder.RunFolder.rewind = lambda self, step: None\ncli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "train", str(recipe), "--resume"], env=ENV, capture_output=True, text=True
    )
    assert done.returncode == 1 and "the disk is full" in done.stderr and "Traceback" not in done.stderr
