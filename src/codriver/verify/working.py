"""Checks written arithmetic: each step against the problem and against its own arithmetic, and the final answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["compact", "chained", "words"]
STEP = re.compile(r"\s*(-?\d{1,12})\s*([+-])\s*(\d{1,12})\s*=\s*(-?\d{1,12})\s*", re.ASCII)
LINK = re.compile(r"([+-])(\d{1,12})=(-?\d{1,12})", re.ASCII)
CHAIN = re.compile(r"(-?\d{1,12})(.*)", re.ASCII | re.DOTALL)
ANSWER = {
    "compact": re.compile(r"#(-?\d{1,12})(?!\d)", re.ASCII),
    "chained": re.compile(r"#(-?\d{1,12})(?!\d)", re.ASCII),
    "words": re.compile(r"answer\s*(?:is|:)\s*:?\s*(-?\d{1,12})(?![\d.,]*\d)", re.ASCII | re.IGNORECASE),
}
NAMED = re.compile(r"answer\s*(?:is|:)", re.ASCII | re.IGNORECASE)
RESULT = re.compile(r"=\s*(-?\d{1,12})(?![\d.,]*\d)", re.ASCII)
"""What stands for the answer in words where none is named: the last result that is written."""
BREAK = {"compact": ";", "words": "\n"}
Step = tuple[int, str, int, int]
"""(running value, sign, number, result) as written."""


@dataclass(frozen=True, slots=True)
class Written:
    """One part of a solution where a step is expected."""

    start: int
    """First character; white space around the step is no part of it."""
    stop: int
    step: Step | None
    """None: what is written there is no step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Working:
    """What a written solution contains."""

    answer: int | None
    """None when there is no final answer, or more than one different one: guessing twice is not answering."""
    right_step_frac: float
    """Share of the problem's steps that are written, in order, with the right operands and the right result."""
    first_wrong_step: int | None
    """Number of the first step that is missing or wrong; None when all are right."""
    detail: str

    @property
    def all_steps_right(self) -> bool:
        return self.first_wrong_step is None


def check_working(text: str, *, terms: Sequence[tuple[str, int]], modulus: int = 0, form: Form = "compact") -> Working:
    """Judge a solution of `terms[0] terms[1] ...` that is worked from left to right.

    Steps after a wrong one are judged against the true running value, so a step copied from a wrong value is wrong.

    >>> check_working("3+8=11;11-5=6;#6", terms=[("+", 3), ("+", 8), ("-", 5)]).answer
    6
    >>> check_working("3+8=12;12-5=7;#7", terms=[("+", 3), ("+", 8), ("-", 5)]).detail
    'step 1: wrote 3+8=12, expected 3+8=11'
    """
    answers = {value for _, _, value in written_answers(text, form)}
    if form == "words" and not NAMED.search(text):
        answers = {int(match) for match in RESULT.findall(text)[-1:]}
    written = written_steps(text, form)
    first_wrong, num_right, detail = None, 0, ""
    for number, right in enumerate(right_steps(terms, modulus)):
        step = written[number].step if number < len(written) else None
        if step == right:
            num_right += 1
        elif first_wrong is None:
            first_wrong = number
            detail = wrong_step(number, step, right)
    if not answers:
        detail = detail or "no final answer"
    elif len(answers) > 1:
        detail = f"several different answers: {sorted(answers)}"
    return Working(
        answer=answers.pop() if len(answers) == 1 else None,
        right_step_frac=num_right / max(len(terms) - 1, 1),
        first_wrong_step=first_wrong,
        detail=detail,
    )


def right_steps(terms: Sequence[tuple[str, int]], modulus: int = 0) -> list[Step]:
    """
    >>> right_steps([("+", 3), ("+", 8), ("-", 5)])
    [(3, '+', 8, 11), (11, '-', 5, 6)]
    """
    value, steps = terms[0][1], []
    for sign, term in terms[1:]:
        result = value + term if sign == "+" else value - term
        result = result % modulus if modulus else result
        steps.append((value, sign, term, result))
        value = result
    return steps


def wrong_step(number: int, step: Step | None, right: Step) -> str:
    wrote = "{}{}{}={}".format(*step) if step else "nothing that is a step"
    return f"step {number + 1}: wrote {wrote}, expected " + "{}{}{}={}".format(*right)


def written_answers(text: str, form: Form) -> list[tuple[int, int, int]]:
    """Every answer that is named as one: (first character, character behind the last, value)."""
    return [(m.start(), m.end(), int(m[1])) for m in ANSWER[form].finditer(text)]


def written_steps(text: str, form: Form) -> list[Written]:
    """Every part of the text where a step is expected, in order."""
    return _chained_steps(text) if form == "chained" else _separate_steps(text, form)


def _separate_steps(text: str, form: Form) -> list[Written]:
    """`3+8=11;11-5=6;#6`, or one step a line; parts that hold an answer or nothing are left out."""
    found, start = [], 0
    for part in text.split(BREAK[form]):
        if part.strip() and not ANSWER[form].search(part):
            m = STEP.fullmatch(part)
            first = start + len(part) - len(part.lstrip())
            step = (int(m[1]), m[2], int(m[3]), int(m[4])) if m else None
            found.append(Written(first, first + len(part.strip()), step))
        start += len(part) + 1
    return found


def _chained_steps(text: str) -> list[Written]:
    """`3+8=11-5=6#6`: each result is the next step's running value. Reading stops at what is no step."""
    start = CHAIN.match(text)
    if not start:
        return []
    value, rest, steps, position, first = int(start[1]), start[2], [], start.start(2), 0
    while link := LINK.match(rest):
        steps.append(Written(first, position + link.end(), (value, link[1], int(link[2]), int(link[3]))))
        value, rest = int(link[3]), rest[link.end() :]
        first = position = position + link.end()
    return [*steps, *([] if rest.startswith("#") else [Written(position, len(text), None)])]
