"""What a person sees while codriver runs: the plan, a progress bar per stage, the tables at the end."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from codriver.recipe.schema import SIGNALS, Plan, Recipe

SHOWN = (("reward", "reward/mean"), ("loss", "signal/supervised/loss"))


class TerminalShow:
    """Progress bars on stderr, so that stdout stays for results."""

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.bar: Progress | None = None

    def note(self, text: str) -> None:
        self.console.print(text, style="yellow")

    def stage(self, recipe: Recipe, *, first_step: int) -> Callable[[int, Mapping[str, float]], None]:
        bar = Progress(
            TextColumn("{task.description:14}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
            console=self.console,
        )
        row: TaskID = bar.add_task(recipe.name, total=recipe.steps, completed=first_step, facts="loading")
        bar.start()

        def progress(step: int, metrics: Mapping[str, float]) -> None:
            bar.update(row, completed=step + 1, facts=_facts(metrics))
            if step + 1 == recipe.steps:
                bar.stop()

        return progress


def _facts(metrics: Mapping[str, float]) -> str:
    facts = [f"{label} {metrics[name]:.3f}" for label, name in SHOWN if name in metrics]
    facts += [f"kl {v:.3f}" for k, v in metrics.items() if k.startswith("teacher/kl/task/")][:1]
    facts += [
        f"{k.split('/')[1]} {v:.1%}" for k, v in metrics.items() if k.startswith("eval/") and k.endswith("/accuracy")
    ]
    return "  ".join(facts)


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """The table of `--dry-run`: what will run, in which order, from which weights, judged by whom."""
    if as_json:
        print(json.dumps(plan.model_dump(mode="json")))
        return
    table = Table(title=f"{plan.name}: {len(plan.stages)} stage{'s' * (len(plan.stages) > 1)} -> {plan.output_dir}")
    for column in ("stage", "kind", "student", "teacher", "signals", "tasks", "steps", "per step", "learning rate"):
        table.add_column(column)
    for stage in plan.stages:
        table.add_row(*_plan_row(stage))
    Console(width=None if Console().is_terminal else 160).print(table)
    print("every key is known and every combination is possible; nothing was loaded")


def _plan_row(stage: Recipe) -> list[str]:
    trains = stage.kind == "train"
    signals = {name: getattr(stage.signals, name).coef for name in SIGNALS}
    teachers = sorted({stage.teacher_of(share) for share in stage.tasks}) if stage.needs_teacher else []
    return [
        stage.name,
        stage.kind,
        stage.student.model,
        ", ".join(f"{n} ({stage.teachers[n].model})" for n in teachers) or "-",
        " + ".join(f"{coef:g} {name}" for name, coef in signals.items() if coef) if trains else "supervised",
        ", ".join(share.label for share in stage.tasks),
        str(stage.steps),
        f"{stage.rollout.prompts_per_step} x {stage.rollout.num_generations} rollouts"
        if trains
        else f"{stage.supervised.batch_size} examples",
        f"{stage.optimizer.learning_rate:g} {stage.optimizer.schedule}",
    ]


def print_metrics(metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        print(f"{name:36} {value:.4g}")


def print_comparison(rows: Sequence[Mapping[str, Any]]) -> None:
    """Arms as columns, figures as rows."""
    if not rows:
        return
    table = Table(title="comparison")
    table.add_column("")
    for row in rows:
        table.add_column(str(row["stage"]), justify="right")
    for name in [key for key in rows[0] if key not in ("stage", "target")]:
        label = f"steps to {rows[0]['target']:.0%}" if name == "steps_to_target" else name
        table.add_row(label, *[_cell(name, row.get(name)) for row in rows])
    Console(width=None if Console().is_terminal else 120).print(table)


def _cell(name: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "not reached" if name == "steps_to_target" else "-"
    if name.endswith(("accuracy", "accuracy_se", "clipped_ratio")) or "pass_at" in name:
        return f"{value:.1%}"
    if name.startswith("time/"):
        return f"{value:.1f} s"
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.1f}"
