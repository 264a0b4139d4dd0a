"""Tasks by the name a recipe uses, a user's own included, and the check of their options."""

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from codriver.errors import InputError, problem
from codriver.tasks.protocol import Task

TASKS: dict[str, str] = {
    "arithmetic": "codriver.tasks.arithmetic:Arithmetic",
    "dataset": "codriver.tasks.dataset:Dataset",
}
"""Where each task's class is. Imported when asked for: one task's packages are no matter of another's."""


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task with its options; they have been checked by `option_problems`."""
    task: Task = task_class(name)(**options)
    return task


@functools.cache
def task_class(name: str) -> type:
    """The dataclass behind a task's name: one of `TASKS`, or a user's own as `package.module:Class` or
    `path/to/file.py:Class`.

    Raises InputError: no such task, module or class, or no dataclass with `name`, `prompts`, `solution` and `verify`.
    """
    where, colon, attribute = TASKS.get(name, name).rpartition(":")
    if not colon or not attribute.isidentifier():
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.4)
        advice = f"write {near[0]!r}" if near else "see `codriver tasks list`; your own: file.py:Class or module:Class"
        raise InputError(problem("task", name, f"a known task ({', '.join(TASKS)})", advice))
    found = getattr(_module(name, where), attribute, None)
    missing = [part for part in ("name", "prompts", "solution", "verify") if not hasattr(found, part)]
    if not isinstance(found, type) or not dataclasses.is_dataclass(found) or missing:
        has = f"a class without {', '.join(missing)}" if isinstance(found, type) and missing else f"{found!r}"
        advice = f"define {attribute} there as docs/tasks.md shows"
        raise InputError(problem("task", name, f"a dataclass that is a task (found {has})", advice))
    return found


def _module(name: str, where: str) -> types.ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        path = Path(where).resolve()
        spec = importlib.util.spec_from_file_location(f"codriver_user_task_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module
    except (ImportError, FileNotFoundError, SyntaxError) as error:
        said = f"a task that can be imported ({type(error).__name__}: {error})"
        raise InputError(problem("task", name, said, "name an installed module, or a .py file that runs")) from None


def option_problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """Problems of a task's name and options: `key: got ..., expected ..., change: ...`."""
    try:
        kind = task_class(name)
    except InputError as error:
        return [str(error)]
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
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
