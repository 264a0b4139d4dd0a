"""Checks that need the task registry or the list of tiny models; run with the recipe's own before anything loads."""

import re
from collections.abc import Sequence
from pathlib import Path

from codriver.errors import problem
from codriver.models.folder import check_folder
from codriver.models.presets import PRESETS
from codriver.recipe.schema import Recipe, TaskShare
from codriver.signals.legality import refuse_illegal_pair, refuse_truncated_sampling
from codriver.tasks.protocol import HasEnvironment
from codriver.tasks.registry import make_task, option_problems

INITIAL = "student"
"""Model name of a self-teacher."""
PLACEHOLDERS = ("solution", "answer")


def check_tasks(recipe: Recipe) -> list[str]:
    """Names and options of tasks and evaluation sets, data files included."""
    entries: list[tuple[str, TaskShare]] = [(f"tasks.{i}", share) for i, share in enumerate(recipe.tasks)]
    entries += [(f"evaluate.sets.{name}", share) for name, share in recipe.evaluate.sets.items()]
    problems = [f"{path}.{text}" for path, share in entries for text in option_problems(share.task, share.options)]
    return problems or _episode_length_problems(recipe, [share for _, share in entries])


def _episode_length_problems(recipe: Recipe, shares: Sequence[TaskShare]) -> list[str]:
    """Turns can only be bounded by someone who knows the task."""
    of_turns = [s.task for s in shares if isinstance(make_task(s.task, s.options), HasEnvironment)]
    said = recipe.rollout.max_episode_length
    if of_turns and not said:
        expected = f"the tokens of a whole episode, since {of_turns[0]} has several turns"
        advice = "write a number that holds the prompt, all completions and all observations"
        return [problem("rollout.max_episode_length", said, expected, advice)]
    if said and not of_turns:
        expected = "0: no task here has several turns"
        advice = "remove it; max_prompt_length and max_completion_length bound a single turn"
        return [problem("rollout.max_episode_length", said, expected, advice)]
    return []


def check_models(recipe: Recipe) -> list[str]:
    """Models that are not there or not whole, without opening a tensor; placeholders of hints."""
    models = {"student.model": recipe.student.model}
    problems = []
    if recipe.needs_teacher:
        for name, teacher in recipe.teachers.items():
            models[f"teachers.{name}.model"] = teacher.model
            unknown = sorted(set(re.findall(r"\{(\w+)\}", teacher.hint)) - set(PLACEHOLDERS))
            if unknown:
                expected = "placeholders " + ", ".join(f"{{{p}}}" for p in PLACEHOLDERS)
                problems.append(problem(f"teachers.{name}.hint", unknown, expected, "use one of those"))
    return problems + [text for path, model in models.items() for text in _model_problems(path, model)]


def _model_problems(path: str, model: str) -> list[str]:
    preset = model.removeprefix("tiny:")
    if preset != model:
        expected = f"tiny: and one of {', '.join(PRESETS)}"
        return [] if preset in PRESETS else [problem(path, model, expected, "write one of those")]
    if model == INITIAL or model.startswith("stage:"):
        return []
    folder = Path(model).expanduser()
    looks_local = model.startswith((".", "/", "~")) or model.endswith(".gguf") or model.count("/") > 1
    if not folder.exists():
        if not looks_local:
            return []  # a hub id; whether it can be had is known when it is asked for
        return [problem(path, model, "a folder or file that exists", "correct the path (relative to where you run)")]
    if folder.is_file():
        expected, advice = "a model folder or a .gguf file", "give the folder that holds config.json"
        return [] if folder.suffix == ".gguf" else [problem(path, model, expected, advice)]
    found = (text.removeprefix(f"{folder}: ").partition("; ") for text in check_folder(folder))
    return [problem(path, model, f"a whole model folder ({lack})", advice) for lack, _, advice in found]


def check_signals(recipe: Recipe) -> list[str]:
    """Forms that would teach nothing or the wrong thing, each with the reason."""
    if recipe.kind != "train":
        return []
    outcome, distill, reference = recipe.signals.outcome, recipe.signals.distill, recipe.signals.reference
    problems: list[str] = []
    if distill.coef > 0:
        problems += _distill_problems(recipe)
    if reference.coef > 0:
        problems += _pair("signals.reference.estimator", reference.estimator, reference.estimator, "back_propagated")
    if outcome.coef > 0 and outcome.loss == "cispo":
        idle = {"ratio": outcome.ratio == "sequence", "dual_clip": outcome.dual_clip is not None}
        if given := [key for key, is_set in idle.items() if is_set]:
            expected = "keys that act: cispo has a token ratio and no dual clip"
            problems.append(problem("signals.outcome.loss", "cispo", expected, f"remove {', '.join(given)}"))
    policy = outcome.coef > 0 or (distill.coef > 0 and distill.use == "policy")
    rollout, corrected = recipe.rollout, recipe.signals.importance.mode != "none"
    try:
        top_k = rollout.top_k or int(rollout.min_p > 0)
        refuse_truncated_sampling(top_p=rollout.top_p, top_k=top_k, has_policy_gradient=policy, is_corrected=corrected)
    except ValueError:
        key = "top_p" if rollout.top_p < 1 else "top_k" if rollout.top_k else "min_p"
        expected = "untruncated sampling: a policy gradient is of the whole distribution, these tokens are not"
        advice = "write top_p: 1.0, top_k: 0, min_p: 0.0, or correct the ratio with signals.importance.mode"
        problems.append(problem(f"rollout.{key}", getattr(rollout, key), expected, advice))
    return problems


def _distill_problems(recipe: Recipe) -> list[str]:
    distill = recipe.signals.distill
    estimator = distill.estimator if distill.form == "sampled" else "state_kl"
    use = {"policy": "policy_gradient", "direct": "back_propagated"}[distill.use]
    problems = _pair("signals.distill.gradient", distill.gradient, estimator, use)
    if distill.form == "top_k" and distill.divergence not in ("reverse", "forward", "jensen_shannon"):
        expected = "reverse, forward or jensen_shannon with form: top_k"
        problems.append(problem("signals.distill.divergence", distill.divergence, expected, "or write form: full"))
    return problems


def _pair(path: str, got: str, estimator: str, use: str) -> list[str]:
    try:
        refuse_illegal_pair(estimator, use)
    except ValueError as error:
        reason, _, advice = str(error).partition(": ")
        why, _, instead = advice.rpartition(": ")
        return [problem(path, got, f"a use that teaches ({reason}: {why})", instead)]
    return []
