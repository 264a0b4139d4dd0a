"""From one stage's recipe to a Run: the only file beside `train.py` that sees every room.

Everything that can be refused without weights is refused in `recipe/`; what needs a tokenizer or a device is refused
here, before the first optimizer step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from codriver.allocation import allocate
from codriver.collecting import Conversation, episode_length, make_collect, make_conversation
from codriver.errors import InputError
from codriver.evaluate import EvaluationSet, Evaluator
from codriver.learn.checkpoint import Checkpoint
from codriver.models.load import Policy, load_policy
from codriver.models.logprob_head import require_known_head
from codriver.models.render import decode_completion
from codriver.observe.metrics import Metrics
from codriver.observe.run_folder import RunFolder
from codriver.observing import Observer, Progress, Publisher, Timer
from codriver.recipe.schema import Recipe, TaskShare
from codriver.rollout.protocol import Engine, Sampling
from codriver.rollout.torch_engine import TorchEngine
from codriver.run import Run
from codriver.signal_wiring import Coefficients, make_learner, make_scorer, signal_shares
from codriver.tasks.mix import Part
from codriver.tasks.registry import make_task
from codriver.tasks.verifier import Verifier
from codriver.teacher_pool import make_pool


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """A run ready to go, and what its end needs."""

    run: Run
    policy: Policy
    observer: Observer


def assemble(
    recipe: Recipe,
    *,
    folder: RunFolder,
    stages: Mapping[str, Path],
    checkpoint: Checkpoint | None = None,
    progress: Progress,
    interrupted: Callable[[], bool] = lambda: False,
) -> Assembled:
    """Load the student (or its checkpoint), the teachers a signal asks, the tasks; wire the stages of the loop.

    Args:
        stages:     final weights of earlier stages, by name.
        checkpoint: where to go on; None starts at step 0.
    """
    device = torch_device(recipe.student.device)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    policy = load_student(recipe, stages=stages, device=device, checkpoint=checkpoint)
    parts = [make_part(recipe, share) for share in recipe.tasks]
    sampling = make_sampling(recipe, policy)
    engine = make_engine(recipe, policy)
    conversation = make_conversation(recipe, policy)
    timer = Timer()
    pool = make_pool(recipe, policy, parts, stages=stages, device=device)
    learner = make_learner(recipe, policy, folder, judges=pool.judges)
    coefficients = Coefficients(signal_shares(recipe), target_kl=recipe.signals.reference.target_kl)
    if checkpoint is not None:
        state = checkpoint.state()
        learner.load_state_dict(state["learner"])
        coefficients.load_state_dict(state["coefficients"])
    next_step = checkpoint.next_step if checkpoint else 0
    engine.publish(next_step)
    observer = Observer(
        folder=folder,
        evaluator=make_evaluator(recipe, conversation, engine, parts, sampling),
        evaluate_every=recipe.evaluate.every,
        evaluate_prompts=recipe.evaluate.prompts,
        final_prompts=recipe.evaluate.final_prompts or recipe.evaluate.prompts,
        records_every=recipe.records.every,
        records_max_episodes=recipe.records.max_episodes,
        num_steps=recipe.steps,
        timer=timer,
        progress=progress,
    )
    publisher = Publisher(
        engine=engine,
        folder=folder,
        policy=policy,
        state=lambda: {"learner": learner.state_dict(), "coefficients": coefficients.state_dict()},
        every=recipe.checkpoint.every,
        keep=recipe.checkpoint.keep,
        num_steps=recipe.steps,
        timer=timer,
        interrupted=interrupted,
    )
    verifier = make_verifier(recipe, conversation, parts)
    scorer = make_scorer(recipe, pool)
    run = Run(
        next_step=next_step,
        num_steps=recipe.steps,
        collect=timer.wrap("rollout", make_collect(recipe, conversation, engine, parts, sampling)),
        verify=timer.wrap("verify", verifier.verify),
        score=timer.wrap("teacher", scorer.score),
        allocate=timer.wrap("allocate", lambda scored: allocate(scored, coefficients.shares())),
        learn=timer.wrap("learn", coefficients.following(learner.learn)),
        observe=observer.observe,
        publish=publisher.publish,
    )
    return Assembled(run=run, policy=policy, observer=observer)


def torch_device(name: str) -> str:
    """The device to use. Raises InputError: a GPU is asked for and there is none."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"student.device: got {name!r}, but torch sees no GPU; write auto or cpu")
    return name


def load_student(
    recipe: Recipe, *, stages: Mapping[str, Path], device: str, checkpoint: Checkpoint | None = None
) -> Policy:
    student = recipe.student
    name = student.model if checkpoint is None or student.lora else str(checkpoint.model_folder)
    policy = load_policy(name, stages=stages, dtype=student.dtype, device=device, seed=recipe.seed)
    if student.lora is not None:
        from codriver.models.lora import add_lora, load_adapter

        model = add_lora(policy.model, rank=student.lora.rank, alpha=student.lora.alpha, seed=recipe.seed)
        if checkpoint is not None:
            load_adapter(model, checkpoint.model_folder)
        policy = replace(policy, model=model)
    require_known_head(policy.model, vocab_size=policy.vocab_size, name=student.model)
    return policy


def make_part(recipe: Recipe, share: TaskShare) -> Part:
    return Part(
        name=share.label,
        task=make_task(share.task, share.options),
        share=share.share,
        teacher=recipe.teacher_of(share) if recipe.needs_teacher else "",
    )


def make_sampling(recipe: Recipe, policy: Policy) -> Sampling:
    rollout = recipe.rollout
    return Sampling(
        max_tokens=rollout.max_completion_length,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        stop_ids=policy.stop_ids,
        stop_strings=rollout.stop_strings,
    )


def make_engine(recipe: Recipe, policy: Policy) -> Engine:
    return TorchEngine(
        policy.model,
        vocab_size=policy.vocab_size,
        max_slots=recipe.rollout.max_slots,
        max_length=episode_length(recipe, policy),
        decode=lambda ids: decode_completion(policy.tokenizer, np.asarray(ids, np.int64)),
    )


def make_verifier(recipe: Recipe, conversation: Conversation, parts: Sequence[Part]) -> Verifier:
    return Verifier(
        tasks={part.name: part.task for part in parts}.__getitem__,
        max_invalid_frac=recipe.rollout.max_invalid_frac,
        timeout_s=recipe.rollout.verify_timeout_s,
        threads=recipe.rollout.verify_threads,
        decode=conversation.decode,
    )


def make_evaluator(
    recipe: Recipe, conversation: Conversation, engine: Engine, parts: Sequence[Part], sampling: Sampling
) -> Evaluator:
    further = recipe.evaluate.sets.items()
    temperature = recipe.evaluate.temperature
    plain = replace(sampling, top_p=1.0, top_k=0, min_p=0.0) if temperature is not None else sampling
    return Evaluator(
        engine=engine,
        sets=[EvaluationSet(name=part.name, task=part.task) for part in parts],
        final_sets=[EvaluationSet(name=n, task=make_task(s.task, s.options)) for n, s in further],
        sampling=replace(plain, temperature=sampling.temperature if temperature is None else temperature),
        conversation=conversation,
        samples=recipe.evaluate.samples,
        seed=recipe.seed,
        verifier=make_verifier(recipe, conversation, parts),
    )


def evaluate_recipe(recipe: Recipe, *, weights: Path | None) -> Metrics:
    """The held-out pass of one stage's recipe, with given weights or the student as it starts."""
    device = torch_device(recipe.student.device)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    start = (
        recipe
        if weights is None
        else recipe.model_copy(
            update={"student": recipe.student.model_copy(update={"model": str(weights), "lora": None})}
        )
    )
    if start.student.model.startswith("stage:"):
        raise InputError(
            f"{recipe.name}: its student {start.student.model} is made by a run; give the run's folder instead"
        )
    policy = load_student(start, stages={}, device=device)
    parts = [make_part(recipe, share) for share in recipe.tasks]
    conversation, sampling = make_conversation(recipe, policy), make_sampling(recipe, policy)
    evaluator = make_evaluator(recipe, conversation, make_engine(recipe, policy), parts, sampling)
    return evaluator.evaluate(recipe.evaluate.final_prompts or recipe.evaluate.prompts, final=True)
