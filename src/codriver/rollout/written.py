"""Episodes from worked solutions: a data set writes."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from codriver.episode import Episode, Int, Prompt
from codriver.errors import InputError
from codriver.rollout.protocol import Completion
from codriver.rollout.script import Render, Script, Turns

RenderWhole = Callable[[Prompt, str], Int]
"""The ids of a prompt and the assistant's answer."""


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


def written_dialogue(
    prompt: Prompt,
    group: str,
    solutions: Sequence[str],
    *,
    turns: Turns,
    render: Render,
    write: RenderWhole,
    whole_text: bool,
) -> Episode:
    """A worked episode of several turns: the environment answers each written completion as it would a sampled one.

    Args:
        write: ids of one completion of this prompt, with the stop token that ends its turn.
    Raises:
        InputError: nothing is written, the environment fails or wants more turns than are written, or the episode is
            longer than `turns.max_length`.
    """
    return asyncio.run(_dialogue(prompt, group, solutions, turns, render, write, whole_text))


async def _dialogue(
    prompt: Prompt,
    group: str,
    solutions: Sequence[str],
    turns: Turns,
    render: Render,
    write: RenderWhole,
    whole_text: bool,
) -> Episode:
    environment = turns.environment(prompt)
    if not solutions or environment is None:
        raise InputError(f"prompt {prompt.id}: its task writes no turns, so there is nothing to learn from here")
    script = Script(f"{group}/0", prompt, group, render(prompt))
    await environment.start()
    for number, text in enumerate(solutions):
        ids = write(prompt, text)
        zeros = np.zeros(len(ids), np.float32)
        unknown = np.full(len(ids), -1, np.int64)
        written = Completion(id=script.id, token_ids=ids, logp=zeros, kept_logp=zeros, version=unknown, finish="stop")
        script.take(written, text)
        goes_on = script.goes_on(await environment.step(text), turns)
        if goes_on != (number + 1 < len(solutions)):
            raise InputError(
                f"prompt {prompt.id}: its task writes {len(solutions)} turns, but after {number + 1} the episode "
                + ("goes on" if goes_on else f"is over ({script.finish}, {script.length} tokens)")
            )
    return script.episode(author="dataset", whole_text=whole_text)
