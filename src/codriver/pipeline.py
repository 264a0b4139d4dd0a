"""The stages of a recipe, one after the other: skip what is done, resume what was killed, compare at the end.

runs/<name>/  stages/<stage>/ (a run folder each)   comparison.json   report.html        recipe with stages
runs/<name>/  (a run folder)                                                            recipe without
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from codriver.assemble import Assembled, assemble
from codriver.errors import InputError, disk_error
from codriver.learn.checkpoint import newest_checkpoint
from codriver.models.load import save_policy
from codriver.observe.comparison import comparison_rows
from codriver.observe.metrics import Metrics
from codriver.observe.report import write_report
from codriver.observe.run_folder import RunFolder
from codriver.observing import Progress
from codriver.recipe.schema import Plan, Recipe
from codriver.run import Stop
from codriver.train import train

OWN_FILES = ("recipe.yaml", "environment.json", "events.jsonl", "metrics.jsonl", "report.html", "comparison.json")
"""What a run writes before its first figure; a folder with nothing else in it may be taken."""


class Show(Protocol):
    """Where progress goes: a terminal, or nowhere."""

    def stage(self, recipe: Recipe, *, first_step: int) -> Progress: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a plan ended."""

    root: Path
    stop: Stop
    report: Path
    rows: list[dict[str, Any]]
    """The comparison table: one mapping per stage of `compare`; empty without it."""


def run_plan(plan: Plan, *, resume: bool, show: Show, interrupted: Callable[[], bool] = lambda: False) -> Outcome:
    """Run every stage that is not done yet.

    Raises:
        InputError: the folder exists already and `resume` is off, or holds another recipe.
    """
    root = Path(plan.output_dir)
    require_free(root, resume=resume)
    finals: dict[str, Path] = {}
    stop = Stop("nothing to do")
    for recipe in plan.stages:
        folder = RunFolder(root / "stages" / recipe.name if plan.is_staged else root)
        if folder.is_done and resume:
            folder.require_same_recipe(recipe_text(recipe))
            show.note(f"{recipe.name}: done already")
        else:
            stop = run_stage(recipe, folder=folder, finals=finals, show=show, interrupted=interrupted)
        finals[recipe.name] = folder.path / "final"
        if stop.by_rule:
            break
    rows = []
    if plan.compare is not None and not stop.by_rule:
        chosen = plan.compare
        recipes = {stage.name: stage for stage in plan.stages}
        first = chosen.set or recipes[chosen.stages[0]].tasks[0].label
        folders = {name: RunFolder(root / "stages" / name) for name in chosen.stages}
        rows = comparison_rows(folders, evaluation_set=first, target=chosen.target)
        (root / "comparison.json").write_text(json.dumps({"arms": list(chosen.stages), "rows": rows}, indent=1))
    report = write_report([root], root / "report.html")
    return Outcome(root=root, stop=stop, report=report, rows=rows)


def require_free(root: Path, *, resume: bool) -> None:
    """Raises InputError: the folder holds a run that has begun, or files of something else."""
    if resume or not root.exists():
        return
    if not root.is_dir():
        raise InputError(f"output_dir: {root} is a file; give a folder")
    begun = any(RunFolder(path.parent).is_begun for path in root.rglob("recipe.yaml"))
    foreign = any(path.is_file() and path.name not in OWN_FILES for path in root.rglob("*"))
    if begun or foreign:
        raise InputError(
            f"{root} exists already; add --resume to go on with that run, or set output_dir=<another folder>"
        )


def run_stage(
    recipe: Recipe,
    *,
    folder: RunFolder,
    finals: Mapping[str, Path],
    show: Show,
    interrupted: Callable[[], bool] = lambda: False,
) -> Stop:
    """One stage, from its newest whole checkpoint if there is one."""
    text = recipe_text(recipe)
    if folder.is_begun:
        folder.require_same_recipe(text)
        folder.write_environment()
    else:
        folder.create(text)
    checkpoint = newest_checkpoint(folder.path / "checkpoints", tell=show.note)
    folder.rewind(checkpoint.next_step if checkpoint else -1)
    folder.event("resume" if checkpoint else "start", next_step=checkpoint.next_step if checkpoint else 0)
    progress = show.stage(recipe, first_step=checkpoint.next_step if checkpoint else 0)
    built = assemble(
        recipe, folder=folder, stages=finals, checkpoint=checkpoint, progress=progress, interrupted=interrupted
    )
    if checkpoint is None:
        built.observer.before()
    stop = train(built.run)
    finish_stage(built, folder, stop)
    return stop


def finish_stage(built: Assembled, folder: RunFolder, stop: Stop) -> Metrics:
    """Final evaluation, final weights, and the event that says so; a kill repeats what is missing."""
    steps = len([row for row in folder.rows() if row["row"] == "training"])
    metrics = built.observer.after(steps)
    export_model(built, folder.path / "final")
    folder.event("stopped" if stop.by_rule else "done", reason=stop.reason)
    return metrics


def export_model(built: Assembled, final: Path) -> None:
    """The trained student as an ordinary HF folder, whole or not there."""
    temporary = final.with_name(".final.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        save_policy(built.policy, temporary, merge=True)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise disk_error(error, final) from error


def recipe_text(recipe: Recipe) -> str:
    """The resolved recipe, every default written out."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
