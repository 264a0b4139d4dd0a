"""A conversation as token ids, through the tokenizer's own chat template; a completion as text."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from codriver.errors import InputError

HINT_SEPARATOR = "\n\n"
"""Between a message's own text and the hint added to it."""


class Turn(Protocol):
    """One message: `codriver.episode.Message`, seen from here (this room does not import episodes)."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


def render(
    tokenizer: Any, messages: Sequence[Turn], *, add_generation_prompt: bool = True, answer: str | None = None
) -> NDArray[np.int64]:
    """Ids of a conversation, [P].

    Args:
        add_generation_prompt: end where the assistant's next completion begins.
        answer: the assistant's reply, rendered as a finished turn behind `messages`; no generation prompt then.
    Raises:
        InputError: the tokenizer has no chat template, or its template refuses these messages.
    """
    turns = [(message.role, message.content) for message in messages]
    if answer is not None:
        return _render(tokenizer, [*turns, ("assistant", answer)], add_generation_prompt=False)
    return _render(tokenizer, turns, add_generation_prompt=add_generation_prompt)


def render_with_hint(
    tokenizer: Any, messages: Sequence[Turn], hint: str, *, place: Literal["system", "user"]
) -> NDArray[np.int64]:
    """The conversation as a hinted teacher sees it, ending where the completion begins. No hint: exactly `render`.

    Args:
        place: "system": a system message in front, or the end of the one that is there (templates take only one);
               "user": the end of the last user turn.
    Raises:
        InputError: as `render`; or `place` is "user" and there is no user turn.
        ValueError: another place.
    """
    if place not in ("system", "user"):
        raise ValueError(f"render_with_hint: place must be 'system' or 'user', got {place!r}")
    turns = [(message.role, message.content) for message in messages]
    if not hint:
        return _render(tokenizer, turns, add_generation_prompt=True)
    of_role = [i for i, (role, _) in enumerate(turns) if role == place]
    if place == "user" and not of_role:
        raise InputError("hint: there is no user turn to put it in; set hint_place: system")
    if of_role:
        at = of_role[-1] if place == "user" else of_role[0]
        turns[at] = (place, turns[at][1] + HINT_SEPARATOR + hint)
    else:
        turns.insert(0, (place, hint))
    return _render(tokenizer, turns, add_generation_prompt=True)


def decode_completion(tokenizer: Any, ids: Sequence[int] | NDArray[np.int64], *, stop_string: str = "") -> str:
    """Text of a completion without special tokens, up to the stop string (exclusive) where it occurs.

    Bytes that are no whole character become U+FFFD; spaces are left as they are.
    """
    text: str = tokenizer.decode(
        np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text.partition(stop_string)[0] if stop_string else text


def _render(tokenizer: Any, turns: list[tuple[str, str]], *, add_generation_prompt: bool) -> NDArray[np.int64]:
    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path or 'the model'} has no chat template; use an instruct model, "
            f"or put chat_template.jinja into the model's folder"
        )
    try:
        ids = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            tokenize=True,
            return_dict=False,
            add_generation_prompt=add_generation_prompt,
        )
    except Exception as error:  # a template is a program that came with the model: it may raise anything
        roles = ", ".join(role for role, _ in turns)
        raise InputError(f"the chat template refuses a conversation of the roles {roles}: {error}") from error
    return np.asarray(ids, dtype=np.int64)
