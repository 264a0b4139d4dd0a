r"""Finds the final answer in a completion. No mathematics is read here.

What counts, in this order, in the text behind the last `</think>` (all of it where nobody thinks):
1. `\boxed{...}` (or `\fbox`), braces matched. The last one must be closed. Different boxes are all returned: the caller
   demands that every one is right, so that boxing two guesses pays no more than boxing none.
2. `#### x`, where it is the last line that is not empty (elsewhere it is a heading).
3. `answer is x`, `Answer: x`: the last one, up to the end of its sentence or line.
Anything else is no answer: a number somewhere in the text is not taken for one.
"""

import re
import unicodedata
from dataclasses import dataclass

MAX_TEXT = 1_000_000
"""Characters of a completion that are searched at all; no usual limit on new tokens reaches it."""
MAX_ANSWER = 1000
"""Characters of one answer."""
MAX_NESTING = 24
"""Open brackets at one place; the parsers below recurse."""
MAX_BOXES = 8
"""Different boxes that are looked at; more is no answer but a list of guesses."""

BOX = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
BARE = re.compile(r"[ \t]*([^\s${}\\]+)")
HEADING = re.compile(r"^[ \t]*####[ \t]*(\S.*)$", re.MULTILINE)
PHRASE = re.compile(r"\banswer\**\s*(?:is\b|:|=)\**:?\**", re.IGNORECASE)
SENTENCE_END = re.compile(r"\.(?=\s)")
HIDDEN = ("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp")
"""Control, format (zero width, bidi), private, unassigned, surrogate: what a reader does not see."""
SUPERSCRIPTS = "²³"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The final answer of a completion."""

    answers: tuple[str, ...]
    """The last answer first, then other boxes that are written differently; empty when there is none."""
    detail: str = ""
    """Why there is none."""


class NotReadable(ValueError):
    """A text that cannot be an answer; the message says why."""


def final_answer(text: str, *, is_cut: bool = False) -> Found:
    r"""The final answer of a completion; `is_cut`: the completion hit its length limit.

    A cut completion has an answer only in a closed box: `Answer: 12` may have become `Answer: 123`.

    >>> final_answer(r"So \boxed{\frac{1}{2}}.").answers
    ('\\frac{1}{2}',)
    >>> final_answer(r"\boxed{5} is wrong. Final: \boxed{").detail
    'the last box is not closed'
    """
    if len(text) > MAX_TEXT:
        return Found(answers=(), detail=f"the completion has {len(text)} characters, at most {MAX_TEXT} are searched")
    before, closed, last = text.rpartition("</think>")
    if "<think>" in last:
        return Found(answers=(), detail="the text ends inside <think>")
    boxes, is_open = _boxes(last)
    if is_open:
        return Found(answers=(), detail="the last box is not closed")
    if boxes:
        if not boxes[-1].strip():
            return Found(answers=(), detail="the last box is empty")
        different = list(dict.fromkeys(box.strip() for box in reversed(boxes) if box.strip()))
        return Found(answers=tuple(different))
    if is_cut:
        return Found(answers=(), detail="the completion was cut off before a closed box")
    answer = _behind_a_heading(last) or _behind_a_phrase(last)
    if answer:
        return Found(answers=(answer,))
    where = " behind </think>" if closed else ""
    return Found(answers=(), detail=rf"no final answer{where}: expected \boxed{{...}}, #### or 'answer is'")


def refuse_unreadable(answer: str) -> None:
    """Cheap guards, so that hostile answers cost no parser and no two seconds. Raises NotReadable."""
    if not answer.strip():
        raise NotReadable("the answer is empty")
    if len(answer) > MAX_ANSWER:
        raise NotReadable(f"the answer has {len(answer)} characters, expected at most {MAX_ANSWER}")
    for character in answer:
        if ord(character) < 128 and (character.isprintable() or character in "\n\t\r"):
            continue
        category = unicodedata.category(character)
        if category in HIDDEN:
            raise NotReadable(f"the answer has the hidden character U+{ord(character):04X}")
        if category.startswith("N") and character not in SUPERSCRIPTS:
            raise NotReadable(f"the answer has the digit {character!r}, expected 0 to 9")
    depth = 0
    for character in answer:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_NESTING:
            raise NotReadable(f"the answer nests brackets more than {MAX_NESTING} deep")


def _boxes(text: str) -> tuple[list[str], bool]:
    """Contents of the outermost boxes in order, and whether one is never closed. One pass: linear in the text."""
    found: list[str] = []
    position = 0
    while match := BOX.search(text, position):
        start = match.end()
        opening = re.compile(r"\s*\{").match(text, start)
        if not opening:
            bare = BARE.match(text, start)  # \boxed 5: a TeX habit
            if not bare:
                return found, True
            found.append(bare[1].rstrip(".,;"))
            position = bare.end()
            continue
        depth, stop = 1, -1
        for brace in BRACE.finditer(text, opening.end()):
            depth += (brace[0] == "{") - (brace[0] == "}")
            if depth == 0:
                stop = brace.start()
                break
        if stop < 0:
            return found, True
        found.append(_unboxed(text[opening.end() : stop]))
        position = stop + 1
    return found, False


def _unboxed(content: str) -> str:
    r"""`\boxed{\boxed{5}}` is one answer."""
    inner = content.strip()
    for _ in range(3):
        match = re.fullmatch(r"\\boxed\s*\{(.*)\}", inner, re.DOTALL)
        if not match:
            break
        inner = match[1].strip()
    return inner


def _behind_a_heading(text: str) -> str:
    lines = text.rstrip().rpartition("\n")
    match = HEADING.match(lines[2])
    return match[1].strip() if match else ""


def _behind_a_phrase(text: str) -> str:
    last = None
    for match in PHRASE.finditer(text):
        last = match
    if last is None:
        return ""
    rest = text[last.end() :].lstrip()
    line = rest.partition("\n")[0]
    if line.strip() in ("$$", r"\["):  # a display on lines of its own
        line = " ".join(rest.split("\n", 3)[:3])
    return (SENTENCE_END.split(line, maxsplit=1)[0]).strip().removesuffix(".").strip()
