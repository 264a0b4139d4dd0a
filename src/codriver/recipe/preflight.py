"""What can be refused before anything loads: combinations that cannot work."""

import importlib.util

from codriver.errors import problem
from codriver.recipe.schema import SIGNALS, Recipe


def check_combinations(recipe: Recipe) -> list[str]:
    """Settings that contradict each other, each with what to change."""
    problems: list[str] = []
    signals, rollout = recipe.signals, recipe.rollout
    if recipe.kind == "train":
        if all(getattr(signals, name).coef == 0 for name in SIGNALS):
            problems.append(problem("signals", "every coef 0", "a signal to learn from", "set a coef above 0"))
        if signals.outcome.coef > 0 and rollout.num_generations == 1:
            expected = "at least 2 with signals.outcome (a group of one has no baseline, so no advantage)"
            problems.append(problem("rollout.num_generations", 1, expected, "set it to 4 or more"))
        problems += _teacher_problems(recipe)
    if recipe.student.lora is not None and importlib.util.find_spec("peft") is None:
        problems.append(problem("student.lora", "a rank", "the package peft", "pip install 'codriver[peft]'"))
    labels = [share.label for share in recipe.tasks]
    for twice in sorted({label for label in labels if labels.count(label) > 1}):
        problems.append(problem("tasks", twice, "a name of its own for each entry", "add `name:` to one of them"))
    for name in set(labels) & set(recipe.evaluate.sets):
        problems.append(problem(f"evaluate.sets.{name}", name, "a name that no task has", "rename the set"))
    shares = sum(share.share for share in recipe.tasks)
    smallest = min(recipe.tasks, key=lambda share: share.share)
    if rollout.prompts_per_step * smallest.share / shares < 0.5 and len(recipe.tasks) > rollout.prompts_per_step:
        expected = f"at least one prompt per task ({len(recipe.tasks)} tasks)"
        advice = f"set it to {len(recipe.tasks)} or more"
        problems.append(problem("rollout.prompts_per_step", rollout.prompts_per_step, expected, advice))
    return problems


def _teacher_problems(recipe: Recipe) -> list[str]:
    problems: list[str] = []
    known = ", ".join(recipe.teachers) or "none"
    for number, share in enumerate(recipe.tasks):
        if share.teacher and share.teacher not in recipe.teachers:
            path = f"tasks.{number}.teacher"
            problems.append(problem(path, share.teacher, f"a name under teachers ({known})", "correct the name"))
    if not recipe.needs_teacher:
        return problems
    unrouted = [share.task for share in recipe.tasks if not recipe.teacher_of(share)]
    if unrouted:
        expected = "a teacher for every task (several teachers need `teacher:` on each task)"
        advice = f"add `teachers:` and route {', '.join(unrouted)}" if not recipe.teachers else f"route {unrouted}"
        problems.append(problem("signals.distill.coef", recipe.signals.distill.coef, expected, advice))
    for name, teacher in recipe.teachers.items():
        if teacher.model == "student" and not teacher.hint and recipe.signals.distill.coef > 0:
            expected = "a hint: a student that judges itself in the same context learns nothing at the first step"
            advice = "set teachers.<name>.hint, such as '{solution}', or give another model"
            problems.append(problem(f"teachers.{name}.hint", teacher.hint, expected, advice))
    return problems
