"""Checks that need the task registry or the list of tiny models; run with the recipe's own before anything loads."""

import re

from codriver.errors import problem
from codriver.models.presets import PRESETS
from codriver.recipe.schema import Recipe, TaskShare
from codriver.tasks.registry import option_problems

PLACEHOLDERS = ("solution", "answer")


def check_tasks(recipe: Recipe) -> list[str]:
    """Names and options of tasks and evaluation sets, data files included."""
    entries: list[tuple[str, TaskShare]] = [(f"tasks.{i}", share) for i, share in enumerate(recipe.tasks)]
    entries += [(f"evaluate.sets.{name}", share) for name, share in recipe.evaluate.sets.items()]
    return [f"{path}.{text}" for path, share in entries for text in option_problems(share.task, share.options)]


def check_models(recipe: Recipe) -> list[str]:
    """Presets of tiny models; placeholders of hints."""
    models = {"student.model": recipe.student.model}
    problems = []
    if recipe.needs_teacher:
        for name, teacher in recipe.teachers.items():
            models[f"teachers.{name}.model"] = teacher.model
            unknown = sorted(set(re.findall(r"\{(\w+)\}", teacher.hint)) - set(PLACEHOLDERS))
            if unknown:
                expected = "placeholders " + ", ".join(f"{{{p}}}" for p in PLACEHOLDERS)
                problems.append(problem(f"teachers.{name}.hint", unknown, expected, "use one of those"))
    for path, model in models.items():
        preset = model.removeprefix("tiny:")
        if preset != model and preset not in PRESETS:
            problems.append(problem(path, model, f"tiny: and one of {', '.join(PRESETS)}", "write one of those"))
    return problems
