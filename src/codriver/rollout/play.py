"""Episodes from an engine (the student writes) or from solutions (a data set writes)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from codriver.episode import Episode, Int, Prompt
from codriver.errors import InputError
from codriver.rollout.protocol import Completion, Engine, Request, Sampling

Render = Callable[[Prompt], Int]
"""A prompt's ids, ready for the assistant to write."""
RenderWhole = Callable[[Prompt, str], Int]
"""The ids of a prompt and the assistant's answer."""
Decode = Callable[[Int, str], str]
"""Text of sampled ids, without special tokens and without the stop string given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One prompt of a step and how many completions it gets."""

    prompt: Prompt
    group: str
    """Unique in the run: `step/number`. Never the prompt's text: the same problem drawn twice is two groups."""
    samples: int
    seed: int


def play(engine: Engine, draws: Sequence[Draw], *, sampling: Sampling, render: Render, decode: Decode) -> list[Episode]:
    """Sample every draw's completions; episodes come back in the order of the draws, whatever ended first."""
    requests, owners = [], {}
    for draw in draws:
        prompt_ids = render(draw.prompt)
        for sample in range(draw.samples):
            name = f"{draw.group}/{sample}"
            seed = int(np.random.SeedSequence([draw.seed, sample]).generate_state(1, np.uint64)[0])
            requests.append(Request(id=name, prompt_ids=prompt_ids, sampling=sampling, seed=seed))
            owners[name] = (draw, prompt_ids)
    engine.submit(requests)
    done: dict[str, Completion] = {}
    while engine.num_pending:
        for completion in engine.step():
            done[completion.id] = completion
    return [sampled_episode(*owners[r.id], done[r.id], decode) for r in requests]


def sampled_episode(draw: Draw, prompt_ids: Int, completion: Completion, decode: Decode) -> Episode:
    """One turn: the prompt's ids, then the very ids that were sampled."""
    before, sampled = len(prompt_ids), len(completion.token_ids)

    def column(values: np.ndarray, fill: float, kind: type) -> np.ndarray:
        return np.concatenate([np.full(before, fill, kind), values.astype(kind)])

    return Episode(
        id=completion.id,
        prompt=draw.prompt,
        group=draw.group,
        author="student",
        token_ids=np.concatenate([prompt_ids, completion.token_ids]).astype(np.int64),
        trainable=np.arange(before + sampled) >= before,
        behaviour_logp=column(completion.logp, 0.0, np.float32),
        kept_logp=column(completion.kept_logp, 0.0, np.float32),
        policy_version=column(completion.version, -1, np.int64),
        turn=column(np.zeros(sampled), -1, np.int64),
        completions=(decode(completion.token_ids, completion.stop_string),),
        finish=completion.finish,
    )


def written_episode(
    prompt: Prompt,
    group: str,
    solution: str,
    *,
    render: Render,
    render_whole: RenderWhole,
    stop_ids: Sequence[int],
    whole_text: bool,
    max_length: int,
) -> Episode:
    """A worked solution as an episode: the answer's tokens up to its stop token are trainable, or all of the text.

    Raises:
        InputError: there is no solution, it is too long, or the template does not put it behind the prompt.
    """
    if not solution:
        raise InputError(
            f"prompt {prompt.id}: its task gives no solution, so there is nothing to learn from in this stage"
        )
    prompt_ids, ids = render(prompt), render_whole(prompt, solution)
    before = len(prompt_ids)
    if not np.array_equal(ids[:before], prompt_ids):
        raise InputError(
            f"prompt {prompt.id}: the chat template renders a conversation with its answer differently from the prompt "
            f"alone (first difference at token {int(np.argmin(ids[:before] == prompt_ids[: len(ids)]))}); "
            f"supervised tokens would not be those that sampling continues"
        )
    stops = np.flatnonzero(np.isin(ids[before:], list(stop_ids)))
    ids = ids[: before + int(stops[0]) + 1] if len(stops) else ids  # some templates add text behind the stop token
    if len(ids) > max_length:
        raise InputError(f"prompt {prompt.id}: {len(ids)} tokens with its solution, but the context holds {max_length}")
    zeros = np.zeros(len(ids), np.float32)
    trainable = np.arange(len(ids)) >= (1 if whole_text else before)
    return Episode(
        id=f"{group}/0",
        prompt=prompt,
        group=group,
        author="dataset",
        token_ids=ids.astype(np.int64),
        trainable=trainable,
        behaviour_logp=zeros,
        kept_logp=zeros,
        policy_version=np.full(len(ids), -1, np.int64),
        turn=np.where(trainable, 0, -1).astype(np.int64),
        completions=(solution,),
        finish="stop",
    )
