"""The teachers that a recipe names, loaded and checked against the student; `assemble` calls it once per stage."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from codriver.episode import Episode, Int
from codriver.errors import InputError
from codriver.models.load import Policy, load_policy
from codriver.models.logprob_head import require_known_head
from codriver.models.render import render_with_hint
from codriver.models.vocabulary import require_same_vocabulary
from codriver.recipe.schema import Recipe
from codriver.recipe.schema import Teacher as TeacherRecipe
from codriver.tasks.mix import Part
from codriver.teachers.local import HintedPrompt, LocalTeacher, same_prompt
from codriver.teachers.protocol import Teacher

INITIAL = "student"
"""Model name of a self-teacher: the weights that the student starts the stage with."""


def make_teachers(
    recipe: Recipe, policy: Policy, parts: Sequence[Part], *, stages: Mapping[str, Path], device: str
) -> dict[str, Teacher]:
    """Every teacher that some task is routed to. Raises InputError: its vocabulary is not the student's."""
    used = {part.teacher for part in parts if part.teacher}
    frozen: dict[str, Policy] = {}
    teachers: dict[str, Teacher] = {}
    for name in sorted(used):
        spec = recipe.teachers[name]
        model = recipe.student.model if spec.model == INITIAL else spec.model
        if model not in frozen:
            frozen[model] = _load_frozen(model, recipe, policy, name=name, stages=stages, device=device)
        teachers[name] = LocalTeacher(
            name=name,
            model=frozen[model].model,
            vocab_size=policy.vocab_size,
            temperature=spec.temperature or recipe.rollout.temperature,
            max_length=frozen[model].context,
            prompt=_hinted_prompt(spec, frozen[model], parts) if spec.hint else same_prompt,
            micro_batch_tokens=recipe.learner.micro_batch_tokens,
        )
    return teachers


def make_reference(recipe: Recipe, policy: Policy, *, stages: Mapping[str, Path], device: str) -> Teacher:
    """The weights at the start of the stage, as something that scores."""
    frozen = _load_frozen(recipe.student.model, recipe, policy, name="reference", stages=stages, device=device)
    return LocalTeacher(
        name="reference",
        model=frozen.model,
        vocab_size=policy.vocab_size,
        temperature=recipe.rollout.temperature,
        max_length=frozen.context,
        micro_batch_tokens=recipe.learner.micro_batch_tokens,
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
