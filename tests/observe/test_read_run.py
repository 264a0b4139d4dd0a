import json
import math

import pytest

from codriver.errors import InputError
from codriver.observe.read_run import (
    comparison_row,
    curve,
    evaluation_sets,
    metric_names,
    read_run,
    series,
    steps_to,
    totals,
    work_s,
)


def lines(path, rows, tail=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


ROWS = [
    {"step": 0, "time": 100.0, "eval/step": 0, "eval/heldout/accuracy": 0.1, "time/evaluate": 9.0},
    {"step": 0, "time": 101.0, "reward/mean": 0.2, "tokens/generated": 50, "time/rollout": 1.0, "time/learn": 0.5},
    {"step": 1, "time": 103.0, "reward/mean": None, "tokens/generated": 70, "time/rollout": 2.0, "time/learn": 0.5},
    {"step": 2, "time": 104.0, "eval/step": 2, "eval/heldout/accuracy": 0.6, "eval/heldout/pass_at_1": 0.6, "eval/longer/accuracy": 0.1, "time/evaluate": 9.0},
]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "plain"
    lines(folder / "metrics.jsonl", ROWS)
    lines(folder / "events.jsonl", [{"time": 99.0, "event": "start"}])
    (folder / "recipe.yaml").write_text("name: plain\nkind: train\nsteps: 2\noptimizer:\n  kind: nested\n")
    (folder / "environment.json").write_text('{"python": "3.11"}')
    return folder


def test_series_gives_the_steps_that_have_a_value(run):
    record = read_run(run)
    assert series(record, "eval/heldout/accuracy") == ((0, 2), (0.1, 0.6))
    assert series(record, "reward/mean") == ((0,), (0.2,))
    assert series(record, "absent") == ((), ())
    assert "reward/mean" in metric_names(record)


def test_the_later_of_two_rows_of_a_step_counts(tmp_path):
    lines(tmp_path / "metrics.jsonl", [{"step": 3, "loss": 1.0}, {"step": 2, "loss": 4.0}, {"step": 3, "loss": 2.0}])
    assert series(read_run(tmp_path), "loss") == ((2, 3), (4.0, 2.0))


def test_tokens_and_seconds_add_up_and_evaluation_is_no_work(run):
    found = curve(read_run(run), "eval/heldout/accuracy")
    assert found.tokens == (0.0, 120.0)
    assert found.seconds == (0.0, 4.0)
    assert work_s(read_run(run)) == 4.0
    assert totals(read_run(run)) == {
        "time/evaluate": 18.0,
        "tokens/generated": 120.0,
        "time/rollout": 3.0,
        "time/learn": 1.0,
    }


def test_seconds_fall_back_to_the_clock(tmp_path):
    lines(tmp_path / "metrics.jsonl", [{"step": 0, "time": 50.0, "loss": 1.0}, {"step": 1, "time": 53.0, "loss": 1.0}])
    assert curve(read_run(tmp_path), "loss").seconds == (0.0, 3.0)


def test_recipe_values_and_steps(run):
    record = read_run(run)
    assert (record.name, record.kind, record.planned_steps, record.num_steps) == ("plain", "train", 2, 2)
    assert record.environment == {"python": "3.11"}


@pytest.mark.parametrize(("event", "status"), [("done", "done"), ("stopped", "stopped"), ("checkpoint", "unfinished")])
def test_the_status_is_in_the_events(run, event, status):
    lines(run / "events.jsonl", [{"time": 99.0, "event": "start"}, {"time": 105.0, "event": event, "reason": "why"}])
    assert read_run(run).status == status


def test_a_cut_last_line_is_left_out_and_said(run):
    lines(run / "metrics.jsonl", ROWS, tail='{"step": 3, "rew')
    record = read_run(run)
    assert record.metrics == read_run(run).metrics and len(record.metrics) == 4
    assert record.notes == ("metrics.jsonl: the last line (5) is cut and was left out",)


def test_a_damaged_line_in_the_middle_is_named(run):
    lines(run / "metrics.jsonl", ROWS[:1], tail='{"st\n{"step": 1}\n')
    with pytest.raises(InputError, match=r"metrics.jsonl:2: expected a JSON object with `step`.*delete that line"):
        read_run(run)


def test_a_glued_event_line_is_left_out_and_said(run):
    (run / "events.jsonl").write_text('{"event": "st{"event": "resumed"}\n{"event": "done"}\n')
    record = read_run(run)
    assert record.status == "done" and record.notes == ("events.jsonl: line 1 is not readable and was left out",)


def test_not_a_run_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="is not a run folder: metrics.jsonl is missing; give the folder that"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_run(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        read_run(tmp_path / "file")


def test_a_run_that_has_just_begun_is_empty_not_wrong(tmp_path):
    (tmp_path / "recipe.yaml").write_text("steps: 5\n")
    (tmp_path / "environment.json").write_text("{}")
    record = read_run(tmp_path)
    assert record.metrics == () and record.status == "unfinished" and record.planned_steps == 5


def test_stages_come_in_the_order_they_began(tmp_path):
    for name, began in (("b-first", 10.0), ("a-second", 20.0)):
        lines(tmp_path / "stages" / name / "metrics.jsonl", [{"step": 0, "time": began, "signal/supervised/loss": 1.0}])
        lines(tmp_path / "stages" / name / "events.jsonl", [{"time": began + 1, "event": "done"}])
    record = read_run(tmp_path)
    assert [s.name for s in record.stages] == ["b-first", "a-second"]
    assert record.stages[0].kind == "supervised"
    assert record.status == "unfinished"
    (tmp_path / "comparison.json").write_text('{"arms": [], "rows": []}')
    assert read_run(tmp_path).status == "done"
    (tmp_path / "comparison.json").write_text('{"arms"')
    assert read_run(tmp_path).notes == ("comparison.json is not a JSON object and was left out",)


def test_the_comparison_row_comes_from_the_metrics_alone(run):
    row = comparison_row(read_run(run))
    assert row["stage"] == "plain" and row["eval/heldout/accuracy"] == 0.6 and row["eval/longer/accuracy"] == 0.1
    assert row["steps_to_50"] == 2 and row["tokens_generated"] == 120.0 and row["time/rollout"] == 3.0
    assert "eval/heldout/pass_at_1" not in row
    assert steps_to(read_run(run), "eval/longer/accuracy") is None


def test_not_a_number_is_no_value(tmp_path):
    lines(
        tmp_path / "metrics.jsonl", [{"step": 0, "loss": math.nan, "flag": True, "word": "x"}, {"step": 1, "loss": 2}]
    )
    assert series(read_run(tmp_path), "loss") == ((1,), (2.0,))
    assert metric_names(read_run(tmp_path)) == ("step", "loss")


def test_sets_with_the_held_out_one_first():
    assert evaluation_sets(["eval/z/accuracy", "eval/heldout/mean_length", "eval/heldout/accuracy", "eval/step"]) == (
        "heldout",
        "z",
    )
