"""A conversation as token ids, through the tokenizer's own chat template; a completion as text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from codriver.errors import InputError

HINT_SEPARATOR = "\n\n"
"""Between a message's own text and the hint added to it."""

MARK = "\ue000\ue001\ue000"
"""Stands for what the student wrote, so that a template shows what it puts behind it. Private-use characters: no
template has or strips them."""
TOOLS_TEXT = """You can call these functions:
{schemas}
To call one, write <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>."""
"""For templates that know no tools: at the end of the system turn."""

Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of functions, as `apply_chat_template(tools=...)` takes them."""


class Turn(Protocol):
    """One message: `codriver.episode.Message`, seen from here (this room does not import episodes)."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


def render(
    tokenizer: Any,
    messages: Sequence[Turn],
    *,
    add_generation_prompt: bool = True,
    answer: str | None = None,
    tools: Tools = (),
) -> NDArray[np.int64]:
    """Ids of a conversation, [P].

    Args:
        add_generation_prompt: end where the assistant's next completion begins.
        answer: the assistant's reply, rendered as a finished turn behind `messages`; no generation prompt then.
        tools: given to the template, or written into the system turn where it knows none.
    Raises:
        InputError: the tokenizer has no chat template, or its template refuses these messages.
    """
    turns = [(message.role, message.content) for message in messages]
    if answer is not None:
        turns, add_generation_prompt = [*turns, ("assistant", answer)], False
    return _encode(tokenizer, _text(tokenizer, turns, add_generation_prompt=add_generation_prompt, tools=tools))


def render_reply(
    tokenizer: Any,
    messages: Sequence[Turn],
    reply: Sequence[Turn],
    *,
    stop_ids: Sequence[int],
    is_ended: bool,
    tools: Tools = (),
) -> NDArray[np.int64]:
    """Ids between a completion and the next one: the end of the assistant's turn, the reply, the generation prompt.

    The completion itself is never rendered: a mark stands for it, and what the template puts behind the mark counts.

    Args:
        messages: the conversation before the completion. reply: what the environment answers; a `tool` turn that the
            template refuses or leaves out is shown as `user`.
        is_ended: the completion has its stop token already: begin behind it.
    """
    behind = _behind_mark(tokenizer, messages, reply, tools)
    ids = _encode(tokenizer, behind)
    stops = np.flatnonzero(np.isin(ids, list(stop_ids)))
    return ids[int(stops[0]) + 1 :] if is_ended and len(stops) else ids


def render_answer(
    tokenizer: Any, messages: Sequence[Turn], answer: str, *, stop_ids: Sequence[int], tools: Tools = ()
) -> NDArray[np.int64]:
    """Ids of a written completion as sampling would have to produce them: its text, then what ends the turn."""
    ids = _encode(tokenizer, _behind_mark(tokenizer, messages, (), tools, add_generation_prompt=False))
    stops = np.flatnonzero(np.isin(ids, list(stop_ids)))
    return np.concatenate([_encode(tokenizer, answer), ids[: int(stops[0]) + 1 if len(stops) else 0]])


def render_with_hint(
    tokenizer: Any, messages: Sequence[Turn], hint: str, *, place: Literal["system", "user"], tools: Tools = ()
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
        return _encode(tokenizer, _text(tokenizer, turns, add_generation_prompt=True, tools=tools))
    of_role = [i for i, (role, _) in enumerate(turns) if role == place]
    if place == "user" and not of_role:
        raise InputError("hint: there is no user turn to put it in; set hint_place: system")
    if of_role:
        at = of_role[-1] if place == "user" else of_role[0]
        turns[at] = (place, turns[at][1] + HINT_SEPARATOR + hint)
    else:
        turns.insert(0, (place, hint))
    return _encode(tokenizer, _text(tokenizer, turns, add_generation_prompt=True, tools=tools))


def decode_completion(tokenizer: Any, ids: Sequence[int] | NDArray[np.int64], *, stop_string: str = "") -> str:
    """Text of a completion without special tokens, up to the stop string (exclusive) where it occurs.

    Bytes that are no whole character become U+FFFD; spaces are left as they are.
    """
    text: str = tokenizer.decode(
        np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text.partition(stop_string)[0] if stop_string else text


def _behind_mark(
    tokenizer: Any, messages: Sequence[Turn], reply: Sequence[Turn], tools: Tools, *, add_generation_prompt: bool = True
) -> str:
    """What the template puts behind the assistant's text, with the reply shown in full."""
    before = [*((m.role, m.content) for m in messages), ("assistant", MARK)]
    problem = ""
    for role_of_tool in ("tool", "user"):
        turns = [(role_of_tool if m.role == "tool" else m.role, m.content) for m in reply]
        try:
            text = _text(tokenizer, [*before, *turns], add_generation_prompt=add_generation_prompt, tools=tools)
        except InputError as error:
            problem = str(error)
            continue
        behind = text.rpartition(MARK)[2]
        if MARK in text and all(content.strip() in behind for _, content in turns):
            return behind
        problem = "the chat template leaves out a turn that the environment answered, or the assistant's own"
    raise InputError(f"{problem}; a task of several turns needs a template that shows them")


def _text(tokenizer: Any, turns: list[tuple[str, str]], *, add_generation_prompt: bool, tools: Tools) -> str:
    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path or 'the model'} has no chat template; use an instruct model, "
            f"or put chat_template.jinja into the model's folder"
        )
    knows_tools = "tools" in str(tokenizer.chat_template)
    if tools and not knows_tools:
        turns = _with_tools_text(turns, tools)
    try:
        text: str = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
    except Exception as error:  # a template is a program that came with the model: it may raise anything
        roles = ", ".join(role for role, _ in turns)
        raise InputError(f"the chat template refuses a conversation of the roles {roles}: {error}") from error
    return text


def _with_tools_text(turns: list[tuple[str, str]], tools: Tools) -> list[tuple[str, str]]:
    said = TOOLS_TEXT.format(schemas="\n".join(json.dumps(tool) for tool in tools))
    if turns and turns[0][0] == "system":
        return [("system", turns[0][1] + HINT_SEPARATOR + said), *turns[1:]]
    return [("system", said), *turns]


def _encode(tokenizer: Any, text: str) -> NDArray[np.int64]:
    """As `apply_chat_template` does: the template has put every special token there itself."""
    return np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)
