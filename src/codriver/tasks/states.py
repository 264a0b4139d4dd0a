"""Judged states as spans of tokens: what a task says in characters of a completion, placed among the sampled ids."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from codriver.episode import Episode, Int, State, StateCheck

Decode = Callable[[Int, str], str]
"""Text of sampled ids, without special tokens and without the stop string given."""


def token_states(episode: Episode, checks: Sequence[StateCheck], decode: Decode) -> tuple[State, ...]:
    """Each check with the tokens [start, stop) of the episode that wrote its characters.

    A token that holds characters of two states belongs to both. A check of no characters is of the token it stands at.

    Raises:
        ValueError: a check names a turn or characters that the episode does not have.
    """
    found = []
    for check in checks:
        if check.turn >= len(episode.completions) or check.stop > len(episode.completions[check.turn]):
            raise ValueError(
                f"episode {episode.id}: a state must lie within one of its {len(episode.completions)} completions, got "
                f"characters {check.start} to {check.stop} of completion {check.turn}"
            )
        of_turn = np.flatnonzero(episode.turn == check.turn)
        start, stop = token_span(episode.token_ids[of_turn], check.start, max(check.stop, check.start + 1), decode)
        first = int(of_turn[0])
        found.append(State(start=first + start, stop=first + stop, label=check.label, constraint=check.constraint))
    return tuple(found)


def token_span(ids: Int, start: int, stop: int, decode: Decode) -> tuple[int, int]:
    """The fewest neighbouring tokens whose text holds characters `start` to `stop` - 1 of the whole text.

    Found by decoding prefixes: only that is true to every tokenizer. A character that a prefix cuts is not yet there.
    """

    def length(count: int) -> int:
        return len(decode(ids[:count], "").rstrip("\ufffd"))

    counts = range(len(ids) + 1)
    first = bisect_left(counts, start + 1, key=length) - 1  # the last prefix without character `start`
    behind = bisect_left(counts, stop, key=length)
    first = min(max(first, 0), max(len(ids) - 1, 0))
    return first, min(max(behind, first + 1), len(ids))
