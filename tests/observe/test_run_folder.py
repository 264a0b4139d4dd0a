import json

import numpy as np
import pytest

from codriver.errors import InputError
from codriver.observe.run_folder import RunFolder
from tests.records import allocated, an_episode, scored


@pytest.fixture
def folder(tmp_path):
    it = RunFolder(tmp_path / "run")
    it.create("steps: 3\nseed: 0\n")
    return it


def test_a_line_cut_by_a_kill_costs_that_line_alone(folder):
    folder.log(0, {"a": 1.0}, row="training")
    with (folder.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 1, "a": 2')
    folder.log(2, {"a": 3.0}, row="training")
    assert [r["step"] for r in folder.rows()] == [0, 2]


def test_numbers_that_are_not_finite_become_null_so_that_the_line_stays_json(folder):
    folder.log(0, {"a": float("nan"), "b": float("inf")}, row="training")
    (line,) = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["a"] is None and "NaN" not in line and "Infinity" not in line


def test_rewinding_forgets_what_a_resumed_run_will_do_again(folder):
    for step in range(4):
        folder.log(step, {"loss": 0.0}, row="training")
        folder.log(step + 1, {"eval/x/accuracy": 0.0}, row="evaluation")
    folder.log(4, {"eval/x/accuracy": 0.0}, row="final")
    folder.rewind(2)
    assert [(r["row"], r["step"]) for r in folder.rows()] == [
        ("training", 0),
        ("evaluation", 1),
        ("training", 1),
        ("evaluation", 2),
    ]


def test_another_recipe_in_the_same_folder_is_refused_with_the_change(folder):
    folder.require_same_recipe("steps: 3\nseed: 0\n")
    with pytest.raises(InputError, match=r"was `steps: 3`.*-> .*`steps: 4`"):
        folder.require_same_recipe("steps: 4\nseed: 0\n")


def test_a_batch_that_failed_can_be_read_back(folder):
    episode = allocated(scored(an_episode(), teacher_logp=[-1, -2, -3, -4]), distill=0.5)
    saved = np.load(folder.save_failed_batch([episode], "loss nan"))
    assert (
        saved["0/token_ids"].tolist() == episode.token_ids.tolist() and saved["0/weight/distill"].tolist() == [0.5] * 4
    )
    assert folder.events()[-1] | {"time": 0} == {"time": 0, "event": "non_finite", "reason": "loss nan"}
