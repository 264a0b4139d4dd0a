"""Checks written arithmetic: each step against the problem and against its own arithmetic, and the final answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["compact", "words"]
STEP = re.compile(r"\s*(-?\d{1,12})\s*([+-])\s*(\d{1,12})\s*=\s*(-?\d{1,12})\s*", re.ASCII)
ANSWER = {
    "compact": re.compile(r"#(-?\d{1,12})(?!\d)", re.ASCII),
    "words": re.compile(r"answer\s*:\s*(-?\d{1,12})(?![\d.,]*\d)", re.ASCII | re.IGNORECASE),
}
BREAK = {"compact": ";", "words": "\n"}


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
    lines = [part for part in text.split(BREAK[form]) if part.strip()]
    answers = {int(match) for match in ANSWER[form].findall(text)}
    written = [STEP.fullmatch(line) for line in lines if not ANSWER[form].search(line)]
    value, first_wrong, num_right, detail = terms[0][1], None, 0, ""
    for number, (sign, term) in enumerate(terms[1:]):
        result = value + term if sign == "+" else value - term
        result = result % modulus if modulus else result
        step = written[number] if number < len(written) else None
        if step and (int(step[1]), step[2], int(step[3]), int(step[4])) == (value, sign, term, result):
            num_right += 1
        elif first_wrong is None:
            first_wrong = number
            wrote = step.group().strip() if step else "nothing that is a step"
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
