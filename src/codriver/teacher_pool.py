"""The teachers that a recipe names, loaded and checked against the student; `assemble` calls it once per stage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codriver.episode import Episode, Int
from codriver.errors import InputError
from codriver.learn.learner import Judge
from codriver.models.load import Policy, load_policy
from codriver.models.logprob_head import output_head, require_known_head
from codriver.models.render import render_with_hint
from codriver.models.vocabulary import require_same_vocabulary
from codriver.recipe.schema import Recipe
from codriver.recipe.schema import Teacher as TeacherRecipe
from codriver.tasks.mix import Part
from codriver.teachers.local import HintedPrompt, LocalTeacher, same_prompt
from codriver.teachers.protocol import Teacher

INITIAL = "student"
"""Model name of a self-teacher: the weights that the student starts the stage with."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """All frozen models of a stage."""

    teachers: Mapping[str, Teacher]
    """Empty when no signal asks a teacher."""
    judges: Mapping[str, Judge]
    """What rebuilds each teacher's distributions in the learner."""
    reference: Teacher | None


def make_pool(
    recipe: Recipe, policy: Policy, parts: Sequence[Part], *, stages: Mapping[str, Path], device: str
) -> Pool:
    """Every teacher that some task is routed to, and the reference; a model that is asked for twice is loaded once.

    Raises:
        InputError: a vocabulary is not the student's.
    """
    if recipe.signals.distill.needs_distribution and recipe.signals.distill.top_k > policy.vocab_size:
        raise InputError(
            f"signals.distill.top_k: got {recipe.signals.distill.top_k}, expected at most the vocabulary's "
            f"{policy.vocab_size} tokens, change: write a smaller list"
        )
    frozen: dict[str, Policy] = {}

    def load(model: str, name: str) -> Policy:
        if model not in frozen:
            frozen[model] = _load_frozen(model, recipe, policy, name=name, stages=stages, device=device)
        return frozen[model]

    teachers: dict[str, Teacher] = {}
    judges: dict[str, Judge] = {}
    for name in sorted({part.teacher for part in parts if part.teacher}) if recipe.needs_teacher else ():
        spec = recipe.teachers[name]
        model = load(recipe.student.model if spec.model == INITIAL else spec.model, name)
        prompt = _hinted_prompt(spec, model, parts) if spec.hint else None
        teachers[name] = _local(name, model, recipe, policy, spec.temperature, prompt=prompt)
        judges[name] = Judge(head=output_head(model.model, policy.vocab_size), temperature=spec.temperature)
    reference = None
    if recipe.kind == "train" and recipe.signals.reference.coef > 0:
        start = load(recipe.student.model, "reference")
        reference = _local("reference", start, recipe, policy, None)
    return Pool(teachers=teachers, judges=judges, reference=reference)


def _local(
    name: str,
    model: Policy,
    recipe: Recipe,
    policy: Policy,
    temperature: float | None,
    prompt: HintedPrompt | None = None,
) -> Teacher:
    return LocalTeacher(
        name=name,
        model=model.model,
        vocab_size=policy.vocab_size,
        temperature=temperature,
        max_length=model.context,
        prompt=prompt or same_prompt,
        micro_batch_tokens=recipe.learner.micro_batch_tokens,
        keep_hidden=name != "reference" and recipe.signals.distill.needs_distribution,
    )


def _load_frozen(
    model: str, recipe: Recipe, policy: Policy, *, name: str, stages: Mapping[str, Path], device: str
) -> Policy:
    frozen = load_policy(model, stages=stages, dtype=recipe.student.dtype, device=device, seed=recipe.seed)
    shared = require_same_vocabulary(policy.tokenizer, frozen.tokenizer, teacher_name=name)
    if shared < policy.vocab_size:
        raise InputError(f"teacher {name} shares {shared} of the student's {policy.vocab_size} token ids")
    require_known_head(frozen.model, vocab_size=policy.vocab_size, name=model)
    frozen.model.requires_grad_(False)
    return frozen


def _hinted_prompt(spec: TeacherRecipe, policy: Policy, parts: Sequence[Part]) -> HintedPrompt:
    solutions: dict[str, Callable[[Episode], str]] = {
        part.name: lambda episode, task=part.task: task.solution(episode.prompt)  # type: ignore[misc]
        for part in parts
    }

    def prompt(episode: Episode) -> Int:
        text = spec.hint.replace("{answer}", episode.prompt.reference)
        if "{solution}" in text:
            text = text.replace("{solution}", solutions[episode.prompt.task](episode))
        return render_with_hint(policy.tokenizer, episode.prompt.messages, text, place=spec.hint_place)

    return prompt
