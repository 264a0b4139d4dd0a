"""From a YAML file and overrides to a checked Plan, or every problem at once."""

import copy
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from codriver.errors import InputError, RecipeError, problem
from codriver.recipe.schema import SIGNALS, Compare, Plan, Recipe

Tree = dict[str, Any]
Check = Callable[[Recipe], list[str]]
"""Looks at one stage's recipe and gives its problems; `preflight` and the task registry have some."""

STAGE_ONLY = ("name", "kind")
PLAN_ONLY = ("stages", "compare")


def load_plan(path: str | Path, overrides: Sequence[str] = (), *, checks: Sequence[Check] = ()) -> Plan:
    """Read, override, merge and check a recipe.

    Args:
        path:      a YAML file.
        overrides: `key.sub=value`, the value in YAML; a stage is addressed as `stages.<name>.key=value`.
        checks:    further looks at each stage, whose problems are reported together with the schema's.
    Raises:
        RecipeError: with all problems, each as `path: got ..., expected ..., change: ...`.
        InputError:  the file cannot be read or is not YAML.
    """
    tree = apply_overrides(read_yaml(Path(path)), overrides)
    problems: list[str] = []
    stages: list[Recipe] = []
    for where, merged, own in stage_trees(tree, problems):
        recipe = _validate(Recipe, merged, where, own, problems)
        if recipe is not None:
            problems += [_locate(text, where, own) for check in checks for text in check(recipe)]
            stages.append(recipe)
    compare = tree.get("compare")
    comparison = _validate(Compare, compare, "compare.", compare, problems) if isinstance(compare, dict) else None
    problems += _plan_problems(stages, comparison)
    if problems:
        raise RecipeError(list(dict.fromkeys(problems)), source=str(path))
    name = str(tree["name"])
    return Plan(
        name=name, output_dir=tree.get("output_dir") or f"runs/{name}", stages=tuple(stages), compare=comparison
    )


def load_stored(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The resolved recipe that a run folder holds. The stages that made its models are over, so they are not asked for.

    Raises RecipeError: an override is wrong.
    """
    tree = apply_overrides(read_yaml(path), overrides)
    problems: list[str] = []
    recipe = _validate(Recipe, tree, "", tree, problems)
    if problems or recipe is None:
        raise RecipeError(problems, source=str(path))
    checked: Recipe = recipe
    return checked


def read_yaml(path: Path) -> Tree:
    try:
        tree = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise InputError(f"recipe {path} does not exist; `codriver recipes` lists those that ship") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InputError(f"recipe {path} is not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise InputError(f"recipe {path}: expected `key: value` lines, got {type(tree).__name__}")
    return tree


def apply_overrides(tree: Tree, overrides: Sequence[str]) -> Tree:
    """A copy of `tree` with each `key.sub=value` set; list items by number, stages also by name.

    An override beats the file: stages that set the very key themselves get the value too.

    >>> apply_overrides({"a": {"b": 1}}, ["a.b=2", "c.d=[x]"])
    {'a': {'b': 2}, 'c': {'d': ['x']}}
    """
    tree = copy.deepcopy(tree)
    for text in overrides:
        key, equals, raw = text.partition("=")
        if not equals or not key:
            raise InputError(f"override {text!r}: expected key.sub=value, such as optimizer.learning_rate=1e-4")
        try:
            value = yaml.safe_load(raw)
        except yaml.YAMLError as error:
            raise InputError(f"override {text!r}: the value is not YAML: {error}") from None
        *parents, last = key.split(".")
        node: Any = tree
        for depth, part in enumerate(parents):
            node = _child(node, part, ".".join(parents[: depth + 1]), text)
        if isinstance(node, list):
            node[_index(node, last, key, text)] = value
        else:
            node[last] = value
        for stage in tree.get("stages") or () if parents and parents[0] != "stages" else ():
            holder = stage
            for part in parents:
                holder = holder.get(part) if isinstance(holder, dict) else None
            if isinstance(holder, dict) and last in holder:
                holder[last] = copy.deepcopy(value)
    return tree


def merge(base: Tree, over: Tree) -> Tree:
    """`over` on top of `base`: mappings merge key by key, all else (lists and null too) is replaced; nothing is shared.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": None}})
    {'a': {'b': None, 'c': 2}}
    """
    out = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(out.get(key), dict) and isinstance(value, dict)
        out[key] = merge(out[key], value) if both else copy.deepcopy(value)
    return out


def stage_trees(tree: Tree, problems: list[str]) -> list[tuple[str, Tree, Tree]]:
    """(prefix of its paths, merged tree, the stage's own keys) for each stage; one for a recipe without stages."""
    base = {k: v for k, v in tree.items() if k not in PLAN_ONLY}
    listed = tree.get("stages") or []
    if not listed:
        return [("", base, base)]
    out: list[tuple[str, Tree, Tree]] = []
    if not isinstance(listed, list):
        problems.append(problem("stages", type(listed).__name__, "a list", "write each stage as `- name: ...`"))
        return out
    for number, own in enumerate(listed):
        if not isinstance(own, dict) or not isinstance(own.get("name"), str):
            problems.append(problem(f"stages.{number}", own, "a mapping with a name", "add `name: ...`"))
            continue
        merged = merge({k: v for k, v in base.items() if k not in STAGE_ONLY}, own)
        out.append((f"stages.{own['name']}.", {"seed": 0, **merged}, own))
    return out


def _child(node: Any, part: str, where: str, text: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, where, text)]
    if not isinstance(node, dict):
        raise InputError(f"override {text!r}: {where} lies inside a plain value")
    if node.get(part) is None:
        node[part] = {}
    return node[part]


def _index(items: list[Any], part: str, where: str, text: str) -> int:
    named = [
        i for i, item in enumerate(items) if isinstance(item, dict) and part in (item.get("name"), item.get("task"))
    ]
    if named:
        return named[0]
    if part.isdigit() and int(part) < len(items):
        return int(part)
    names = [str(item.get("name") or item.get("task")) for item in items if isinstance(item, dict)]
    raise InputError(f"override {text!r}: {where} names none of {names or f'the {len(items)} items'}")


def _validate(model: Any, tree: Tree, where: str, own: Tree, problems: list[str]) -> Any:
    """The checked model. One with problems is checked further without the offending keys, so that all are reported."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        rest = copy.deepcopy(tree)
        for e in error.errors():
            path = ".".join(str(part) for part in e["loc"])
            problems.append(_locate(_explain(model, path, e), where, own))
            _remove(rest, e["loc"])
    try:
        return model.model_validate(rest)
    except ValidationError:
        return None


def _remove(tree: Any, path: Sequence[Any]) -> None:
    for part in path[:-1]:
        known = part in tree if isinstance(tree, dict) else isinstance(tree, list) and isinstance(part, int)
        if not known:
            return
        tree = tree[part]
    if isinstance(tree, dict):
        tree.pop(path[-1], None)


def _explain(model: type[BaseModel], path: str, error: Any) -> str:
    key = path.rpartition(".")[2]
    if error["type"] == "extra_forbidden":
        known = _keys_at(model, path.split(".")[:-1])
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        advice = f"write {near[0]!r}" if near else f"remove it; known here: {', '.join(sorted(known))}"
        return problem(path, key, "a known key", advice)
    if error["type"] == "missing":
        return f"{path}: missing, expected a value, change: add `{key}: ...`"
    expected = str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    return problem(path, error["input"], expected, f"write a value that is {expected}")


def _keys_at(model: Any, path: Sequence[str]) -> list[str]:
    """Keys that the schema knows at a path, looking through optionals, lists and mappings."""
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        if field is not None:
            model = field.annotation
        found = [t for t in _models_in(model) if t is not model]
        model = found[0] if found and not hasattr(model, "model_fields") else model
    return list(getattr(model, "model_fields", {}))


def _models_in(annotation: Any) -> list[Any]:
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [found for arg in get_args(annotation) for found in _models_in(arg)]


def _locate(text: str, where: str, own: Tree) -> str:
    """Prefix a problem with the stage's name where the stage itself set the key; the base's keep their own path."""
    path, _, rest = text.partition(":")
    node: Any = own
    for part in path.split("."):
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            return where + text if rest.startswith(" missing") else text
    return where + text


def _plan_problems(stages: Sequence[Recipe], compare: Compare | None) -> list[str]:
    problems: list[str] = []
    seen: list[str] = []
    for stage in stages:
        where = f"stages.{stage.name}"
        if stage.name in seen:
            problems.append(problem(f"{where}.name", stage.name, "a name of its own", "rename one of the two"))
        models = {"student.model": stage.student.model}
        models |= {f"teachers.{n}.model": t.model for n, t in stage.teachers.items() if stage.needs_teacher}
        for key, model in models.items():
            target = model.removeprefix("stage:")
            if target != model and target not in seen:
                expected = f"an earlier stage ({', '.join(seen)})" if seen else "an earlier stage, and there is none"
                problems.append(problem(f"{where}.{key}", model, expected, "name one, or move this stage down"))
        seen.append(stage.name)
    for name in compare.stages if compare else ():
        if name not in seen:
            advice = f"write {(difflib.get_close_matches(name, seen, n=1) or seen or ['a stage'])[0]!r}"
            problems.append(problem("compare.stages", name, f"stages of this recipe ({', '.join(seen)})", advice))
    return problems + _without_effect(stages)


def _without_effect(stages: Sequence[Recipe]) -> list[str]:
    """Settings that no stage acts on: silently ignoring one would let a user believe in it."""
    problems: list[str] = []
    training = [stage for stage in stages if stage.kind == "train"]
    kinds = ", ".join(sorted({stage.kind for stage in stages}))
    for section, has_use in (("signals", bool(training)), ("supervised", len(training) < len(stages))):
        given = [key for stage in stages for key in sorted(getattr(stage, section).model_fields_set)]
        if given and not has_use:
            expected = f"a stage that it acts on (all stages are of kind {kinds})"
            problems.append(problem(section, given, expected, f"remove {section}"))
    for signal in SIGNALS:
        sections = [getattr(stage.signals, signal) for stage in stages]
        is_used = any(getattr(stage.signals, signal).coef > 0 for stage in training)
        given = sorted({key for section in sections for key in section.model_fields_set} - {"coef"})
        if given and not is_used:
            advice = f"set signals.{signal}.coef above 0, or remove {', '.join(given)}"
            problems.append(problem(f"signals.{signal}", given, "keys that act (its coef is 0 in every stage)", advice))
    idle = [stage.signals.distill.idle_keys() for stage in training if stage.signals.distill.coef > 0]
    for key in sorted(set.intersection(*idle)) if idle else ():
        expected = "a key that acts with the form, divergence, outlier and bound that are set"
        default = yaml.safe_dump(type(training[0].signals.distill).model_fields[key].default).split("\n")[0]
        advice = f"remove it (or override it: signals.distill.{key}={default}), or change what it belongs to"
        problems.append(problem(f"signals.distill.{key}", key, expected, advice))
    used = {stage.teacher_of(task) for stage in training if stage.needs_teacher for task in stage.tasks}
    for name in sorted({name for stage in stages for name in stage.teachers} - used):
        advice = f"remove it, or set signals.distill.coef above 0 and route a task to it (`teacher: {name}`)"
        problems.append(problem(f"teachers.{name}", name, "a teacher that some stage asks", advice))
    return problems
