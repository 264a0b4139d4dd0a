"""The command line. Nothing heavy is imported before a recipe has been read and checked."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codriver.errors import DISK_FULL, EXIT_DONE, EXIT_FAILURE, EXIT_STOPPED, CodriverError, InputError, disk_error

if TYPE_CHECKING:
    from codriver.recipe.schema import Plan

app = typer.Typer(
    help="Post-training of language models: RL with verifiers and on-policy distillation, from one recipe file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RecipeArgument = Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="key.sub=value, stages.<name>.key=value", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


@app.command("train")
def train_command(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in the recipe's folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, show the plan, load nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train what a recipe says, stage by stage, and write a report."""
    plan = read_plan(recipe, overrides or [])
    from codriver.terminal import TerminalShow, print_comparison, print_plan

    if dry_run:
        print_plan(plan, as_json=as_json)
        return
    from codriver.pipeline import require_free

    require_free(Path(plan.output_dir), resume=resume)
    from codriver.pipeline import run_plan

    outcome = run_plan(plan, resume=resume, show=TerminalShow(quiet=as_json), interrupted=interrupt_flag())
    if as_json:
        facts = {"folder": str(outcome.root), "report": str(outcome.report), "stop": outcome.stop.reason}
        print(json.dumps(facts | {"comparison": outcome.rows}))
    else:
        print_comparison(outcome.rows)
        print(f"run folder  {outcome.root}\nreport      {outcome.report}")
    if outcome.stop.by_rule:
        raise typer.Exit(EXIT_STOPPED)


@app.command()
def evaluate(
    target: Annotated[
        str, typer.Argument(help="A recipe (its untrained student) or a run folder (its final weights).")
    ],
    overrides: Overrides = None,
    stage: Annotated[str, typer.Option(help="Stage of a run or recipe with stages; the last one if not given.")] = "",
    as_json: AsJson = False,
) -> None:
    """The held-out pass alone: accuracy, pass@k and length on each evaluation set."""
    from codriver.terminal import print_metrics

    folder = Path(target)
    run_recipe = _run_recipe(folder, stage) if folder.is_dir() else None
    if run_recipe is not None:
        from codriver.recipe.load import load_stored

        chosen = load_stored(run_recipe, overrides or [])
    else:
        plan = read_plan(target, overrides or [])
        names = [s.name for s in plan.stages]
        if stage and stage not in names:
            raise InputError(f"--stage: got {stage!r}, expected one of {', '.join(names)}")
        chosen = next((s for s in plan.stages if s.name == stage), plan.stages[-1])
    from codriver.assemble import evaluate_recipe

    metrics = evaluate_recipe(chosen, weights=run_recipe.parent / "final" if run_recipe else None)
    print(json.dumps(metrics)) if as_json else print_metrics(metrics)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.")],
    out: Annotated[Path | None, typer.Option(help="File to write; report.html in the first run if not given.")] = None,
) -> None:
    """Make the report of one or several runs, finished or still running, from their folders alone."""
    from codriver.observe.report import write_report

    print(write_report(runs, out or runs[0] / "report.html"))


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="Recipe to copy; none: list them.", show_default=False)] = "",
    to: Annotated[Path | None, typer.Option("--to", help="File to copy to; ./<name>.yaml if not given.")] = None,
) -> None:
    """List the recipes that ship with codriver, or copy one to start from."""
    shipped = shipped_recipes()
    if not name:
        for known, path in shipped.items():
            first = path.read_text().splitlines()[0].removeprefix("#").strip()
            print(f"{known:24} {first}")
        return
    if name not in shipped:
        raise InputError(f"no recipe {name!r} ships; there are: {', '.join(shipped)}")
    goal = to or Path(f"{name}.yaml")
    if goal.exists():
        raise InputError(f"{goal} exists already; give another file with --to")
    try:
        shutil.copyfile(shipped[name], goal)
    except OSError as error:
        raise InputError(f"{goal} cannot be written ({error.strerror}); give another file with --to") from None
    print(goal)


def read_plan(recipe: str, overrides: list[str]) -> "Plan":
    """Load and check a recipe without importing torch. Raises RecipeError with all of its problems."""
    from codriver.recipe.load import load_plan
    from codriver.recipe.preflight import check_combinations
    from codriver.task_check import check_models, check_signals, check_tasks

    path = Path(recipe)
    if not path.exists() and path.suffix == "" and recipe in shipped_recipes():
        path = shipped_recipes()[recipe]
    return load_plan(path, overrides, checks=[check_combinations, check_models, check_signals, check_tasks])


def shipped_recipes() -> dict[str, Path]:
    folder = Path(str(files("codriver") / "shipped_recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def interrupt_flag() -> Callable[[], bool]:
    """Ctrl-C once: finish the step, save, stop. Twice: stop at once."""
    pressed: list[bool] = []

    def on_interrupt(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)
        print("\nfinishing this step, then saving (press Ctrl-C again to stop at once)", file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, on_interrupt)
    return lambda: bool(pressed)


def _run_recipe(folder: Path, stage: str) -> Path:
    stages = sorted((folder / "stages").glob("*/recipe.yaml"), key=lambda p: p.stat().st_mtime)
    if stage:
        path = folder / "stages" / stage / "recipe.yaml"
    else:
        path = stages[-1] if stages else folder / "recipe.yaml"
    if not path.is_file():
        known = f"; its stages: {', '.join(p.parent.name for p in stages)}" if stages else ""
        raise InputError(f"{folder}: no run with recipe.yaml found at {path}{known}")
    if not (path.parent / "final").is_dir():
        raise InputError(f"{path.parent} has no final weights yet; let the run end, or resume it")
    return path


def main() -> None:
    """Entry point: messages instead of tracebacks for what the user can act on."""
    try:
        app(standalone_mode=False)
    except CodriverError as error:
        print(f"codriver: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("\ncodriver: stopped at once; --resume goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"codriver: {disk_error(error, Path(error.filename or '.'))}", file=sys.stderr)
        sys.exit(EXIT_FAILURE)
    except Exception as error:  # typer's own usage errors carry their exit code and message
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            sys.exit(error.exit_code)
        raise
    sys.exit(EXIT_DONE)


if __name__ == "__main__":
    main()
