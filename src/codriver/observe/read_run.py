"""A run folder, read back: of a finished, a killed or a still running run. Writes nothing and needs no model.

The recipe stays text: it is shown, not obeyed, and this room reads no YAML. Two of its plain top-level values are
picked out by line (`kind`, `steps`).
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codriver.errors import InputError

Row = Mapping[str, Any]
Status = Literal["done", "stopped", "unfinished"]
ENDINGS = ("done", "stopped")
SUMMED = re.compile(r"time/.+|tokens/(generated|trained)")
NOT_WORK = ("time/evaluate", "time/step", "time/total")
"""Not in the seconds of the x axis: an evaluation is not training, and the others would count a step twice."""
EVAL = re.compile(r"eval/(?P<set>.+)/(?P<what>accuracy|pass_at_\d+)")
SHOWN = re.compile(r"eval/(?P<set>.+)/(accuracy|pass_at_(?!1$)\d+)")
"""Of an evaluation in the comparison; pass@1 is its accuracy."""
TARGET = 0.5
HOW = "give the folder that `codriver train` printed"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """What a run folder, or one stage's folder, says."""

    name: str
    folder: Path
    recipe: str = ""
    """Text of recipe.yaml; empty when the file is missing."""
    environment: Row = field(default_factory=dict)
    metrics: tuple[Row, ...] = ()
    """Rows of metrics.jsonl, in file order. An evaluation may have a row of its own."""
    events: tuple[Row, ...] = ()
    stages: tuple["RunRecord", ...] = ()
    """In the order they began."""
    comparison: Row | None = None
    """comparison.json; None for a run without stages and for one still on its way."""
    notes: tuple[str, ...] = ()
    """What could not be read, in words."""

    @property
    def ending(self) -> Row | None:
        """The event that ended the run, None while there is none."""
        return next((e for e in reversed(self.events) if e.get("event") in ENDINGS), None)

    @property
    def status(self) -> Status:
        """unfinished: still running, or killed; the folder alone cannot tell them apart."""
        if self.ending is not None:
            return "stopped" if self.ending["event"] == "stopped" else "done"
        over = self.stages and self.comparison is not None and all(s.status != "unfinished" for s in self.stages)
        return "done" if over else "unfinished"

    @property
    def kind(self) -> str:
        """pretrain, sft or train; `supervised` when only the metrics tell."""
        return self._setting("kind") or ("supervised" if has(self, "signal/supervised/loss") else "train")

    @property
    def planned_steps(self) -> int | None:
        text = self._setting("steps")
        return int(text) if text.isdigit() else None

    @property
    def num_steps(self) -> int:
        """Optimizer steps logged; a row that holds an evaluation only is none."""
        return len({r["step"] for r in self.metrics if "eval/step" not in r and not _is_evaluation(r)})

    def _setting(self, key: str) -> str:
        match = re.search(rf"^{key}:[ \t]*['\"]?([\w.-]+)", self.recipe, re.MULTILINE)
        return match[1] if match else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric over a run, at the steps that have it. Four lists of the same length."""

    steps: tuple[int, ...]
    tokens: tuple[float, ...]
    """Tokens generated up to and including the row."""
    seconds: tuple[float, ...]
    """Seconds of work up to and including the row, evaluation not counted; clock time where no `time/` was logged."""
    values: tuple[float, ...]


def read_run(folder: str | Path) -> RunRecord:
    """Everything in a run folder but the token records and the weights.

    Raises:
        InputError: the folder does not exist, is not a run folder, or a line that is not the last one is damaged.
    """
    folder = Path(folder)
    if not folder.exists():
        raise InputError(f"{folder} does not exist; {HOW}")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; {HOW}")
    stage_folders = [p for p in sorted((folder / "stages").glob("*")) if p.is_dir()]
    began = (folder / "environment.json").is_file() and (folder / "recipe.yaml").is_file()
    if not (folder / "metrics.jsonl").is_file() and not stage_folders and not began:
        raise InputError(f"{folder} is not a run folder: metrics.jsonl is missing; {HOW}")
    return _read_folder(folder, stage_folders)


def _read_folder(folder: Path, stage_folders: Sequence[Path] = ()) -> RunRecord:
    notes: list[str] = []
    stages = [_read_folder(path) for path in stage_folders]
    recipe = folder / "recipe.yaml"
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        recipe=recipe.read_text(encoding="utf-8", errors="replace") if recipe.is_file() else "",
        environment=_read_json(folder / "environment.json", notes) or {},
        metrics=_read_lines(folder / "metrics.jsonl", "step", int, notes),
        events=_read_lines(folder / "events.jsonl", "event", str, notes, strict=False),
        stages=tuple(sorted(stages, key=lambda s: (_began(s), s.name))),
        comparison=_read_json(folder / "comparison.json", notes),
        notes=tuple(notes),
    )


def has(record: RunRecord, name: str) -> bool:
    return any(finite(row.get(name)) is not None for row in record.metrics)


def metric_names(record: RunRecord) -> tuple[str, ...]:
    """Names with at least one finite value, in the order they first appear."""
    return tuple(dict.fromkeys(k for row in record.metrics for k, v in row.items() if finite(v) is not None))


def series(record: RunRecord, name: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(steps, values) of a metric, where it has a finite value; of two rows of the same step the later one counts."""
    found = curve(record, name)
    return found.steps, found.values


def curve(record: RunRecord, name: str) -> Curve:
    """A metric with its three possible x axes."""
    first = next((t for r in record.metrics if (t := finite(r.get("time"))) is not None), 0.0)
    timed = any(k.startswith("time/") for r in record.metrics for k in r)
    tokens = seconds = 0.0
    points: dict[int, tuple[float, float, float]] = {}
    for row in record.metrics:
        tokens += finite(row.get("tokens/generated")) or 0.0
        if timed:
            seconds += sum(finite(v) or 0.0 for k, v in row.items() if k.startswith("time/") and k not in NOT_WORK)
        else:
            seconds = (finite(row.get("time")) or first) - first
        if (value := finite(row.get(name))) is not None:
            points[row["step"]] = (tokens, seconds, value)
    steps = tuple(sorted(points))
    columns = tuple(tuple(points[s][i] for s in steps) for i in range(3))
    return Curve(steps=steps, tokens=columns[0], seconds=columns[1], values=columns[2])


def totals(record: RunRecord) -> dict[str, float]:
    """Sum over the run of every `time/<stage>` (seconds), `tokens/generated` and `tokens/trained`."""
    total: dict[str, float] = {}
    for row in record.metrics:
        for name, raw in row.items():
            if SUMMED.fullmatch(name) and (value := finite(raw)) is not None:
                total[name] = total.get(name, 0.0) + value
    return total


def work_s(record: RunRecord) -> float:
    """Seconds of rollout, verification, teacher and learning; evaluation not counted."""
    return sum(v for k, v in totals(record).items() if k.startswith("time/") and k not in NOT_WORK)


def last(record: RunRecord, name: str) -> float | None:
    values = series(record, name)[1]
    return values[-1] if values else None


def evaluation_sets(names: Sequence[str]) -> tuple[str, ...]:
    """Names of the evaluation sets among metric names; `heldout` first, the others as they come.

    >>> evaluation_sets(["eval/longer/accuracy", "reward/mean", "eval/heldout/pass_at_4"])
    ('heldout', 'longer')
    """
    found = dict.fromkeys(match["set"] for name in names if (match := EVAL.fullmatch(name)))
    return tuple(sorted(found, key=lambda s: s != "heldout"))


def steps_to(record: RunRecord, name: str, target: float = TARGET) -> int | None:
    """First step at which a metric was seen at or above the target; None if never."""
    steps, values = series(record, name)
    return next((s for s, v in zip(steps, values, strict=True) if v >= target), None)


def comparison_row(record: RunRecord) -> Row:
    """What comparison.json would say of a stage, from its metrics alone: last value of each evaluation, and sums."""
    names = metric_names(record)
    sets = evaluation_sets(names)
    row: dict[str, Any] = {"stage": record.name}
    for one in sets:
        row |= {n: last(record, n) for n in names if (match := SHOWN.fullmatch(n)) and match["set"] == one}
    length = last(record, f"eval/{sets[0]}/mean_length") if sets else None
    row["mean_length"] = length if length is not None else last(record, "completions/mean_length")
    if sets:
        row["steps_to_50"] = steps_to(record, f"eval/{sets[0]}/accuracy")
    total = totals(record)
    row["tokens_generated"] = total.get("tokens/generated")
    return row | {k: v for k, v in total.items() if k in ("time/rollout", "time/teacher", "time/learn")}


def stated_row(row: Row) -> Row:
    """A row of comparison.json with the target in its key, and without what says a thing twice.

    >>> stated_row({"stage": "rl", "target": 0.5, "steps_to_target": 40, "eval/heldout/pass_at_1": 0.6})
    {'stage': 'rl', 'steps_to_50': 40}
    """
    target = finite(row.get("target")) or TARGET
    names = {key: f"steps_to_{target * 100:.0f}" if key == "steps_to_target" else key for key in row}
    kept = {k: v for k, v in row.items() if k != "target" and (not k.startswith("eval/") or SHOWN.fullmatch(k))}
    return {names[k]: v for k, v in kept.items()}


def _read_lines(path: Path, key: str, kind: type, notes: list[str], *, strict: bool = True) -> tuple[Row, ...]:
    """Rows of a JSON-lines file. A kill leaves a cut last line; another bad line is damage, and raises if strict."""
    if not path.is_file():
        return ()
    rows: list[Row] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if isinstance(row, dict) and isinstance(row.get(key), kind):
            rows.append(row)
        elif number == len(lines):
            notes.append(f"{path.name}: the last line ({number}) is cut and was left out")
        elif strict:
            raise InputError(
                f"{path}:{number}: expected a JSON object with `{key}`, got {line[:60]!r}; "
                "delete that line to read the rest"
            )
        else:
            notes.append(f"{path.name}: line {number} is not readable and was left out")
    return tuple(rows)


def _read_json(path: Path, notes: list[str]) -> Row | None:
    if not path.is_file():
        return None
    try:
        tree = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except json.JSONDecodeError:
        tree = None
    if not isinstance(tree, dict):
        notes.append(f"{path.name} is not a JSON object and was left out")
        return None
    return tree


def finite(value: object) -> float | None:
    """A number as a float; None for anything else, NaN and infinity included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _is_evaluation(row: Row) -> bool:
    if "row" in row:
        return bool(row["row"] != "training")
    rest = [k for k in row if k not in ("step", "time", "time/evaluate")]
    return bool(rest) and all(k.startswith("eval/") for k in rest)


def _began(record: RunRecord) -> float:
    times = [t for row in (*record.events, *record.metrics) if (t := finite(row.get("time"))) is not None]
    return min(times, default=math.inf)
