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
    answers = {int(match) for match in ANSWER[form].findall(text)}
    if form == "words" and not NAMED.search(text):
        answers = {int(match) for match in RESULT.findall(text)[-1:]}
    written = _chained_steps(text) if form == "chained" else _separate_steps(text, form)
    value, first_wrong, num_right, detail = terms[0][1], None, 0, ""
    for number, (sign, term) in enumerate(terms[1:]):
        result = value + term if sign == "+" else value - term
        result = result % modulus if modulus else result
        step = written[number] if number < len(written) else None
        if step == (value, sign, term, result):
            num_right += 1
        elif first_wrong is None:
            first_wrong = number
            wrote = "{}{}{}={}".format(*step) if step else "nothing that is a step"
            detail = f"step {number + 1}: wrote {wrote}, expected {value}{sign}{term}={result}"
        value = result
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


def _separate_steps(text: str, form: Form) -> list[Step | None]:
    """`3+8=11;11-5=6;#6`, or one step a line; None for a part that is no step."""
    parts = [part for part in text.split(BREAK[form]) if part.strip() and not ANSWER[form].search(part)]
    found = [STEP.fullmatch(part) for part in parts]
    return [(int(m[1]), m[2], int(m[3]), int(m[4])) if m else None for m in found]


def _chained_steps(text: str) -> list[Step | None]:
    """`3+8=11-5=6#6`: each result is the next step's running value. Reading stops at what is no step."""
    start = CHAIN.match(text)
    if not start:
        return []
    value, rest, steps = int(start[1]), start[2], []
    while link := LINK.match(rest):
        steps.append((value, link[1], int(link[2]), int(link[3])))
        value, rest = int(link[3]), rest[link.end() :]
    return [*steps, *([] if rest.startswith("#") else [None])]
