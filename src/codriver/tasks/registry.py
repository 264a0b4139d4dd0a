"""Tasks by the name a recipe uses, and the check of their options."""

import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from codriver.errors import InputError, problem
from codriver.tasks.arithmetic import Arithmetic
from codriver.tasks.dataset import Dataset
from codriver.tasks.protocol import Task

TASKS: dict[str, type] = {"arithmetic": Arithmetic, "dataset": Dataset}


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task with its options; they have been checked by `option_problems`."""
    task: Task = TASKS[name](**options)
    return task


def option_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """Problems of a task's name and options: `key: got ..., expected ..., change: ...`."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
        advice = f"write {near[0]!r}" if near else "see `codriver tasks list`"
        return [problem("task", name, f"a known task ({', '.join(TASKS)})", advice)]
    hints = get_type_hints(TASKS[name])
    fields = {f.name: f for f in dataclasses.fields(TASKS[name])}
    problems = []
    for key, value in options.items():
        if key not in fields:
            near = difflib.get_close_matches(key, [*fields, "task", "share", "teacher"], n=1, cutoff=0.5)
            advice = f"write {near[0]!r}" if near else f"remove it; {name} knows: {', '.join(fields)}"
            problems.append(problem(key, key, f"an option of the task {name}", advice))
        elif not _fits(value, hints[key]):
            problems.append(problem(key, value, _describe(hints[key]), f"set {key} to {_describe(hints[key])}"))
    for key, f in fields.items():
        if key not in options and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            problems.append(f"{key}: missing, expected {_describe(hints[key])}, change: add `{key}: ...`")
    if problems:
        return problems
    try:
        make_task(name, options)
    except (ValueError, InputError) as error:
        return [str(error)]
    return []


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, arg) for arg in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    return names.get(hint, str(hint))
