"""Arithmetic with written working: `3+8-5=` is answered step by step, and every step can be checked.

compact   3+8-5=      3+8=11;11-5=6;#6
chained   3+8-5:      3+8=11-5=6#6
words     What is 3 + 8 - 5? ...      3 + 8 = 11\\n11 - 5 = 6\\nAnswer: 6
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from codriver.episode import Episode, Message, Prompt, StateCheck, StateLabel, Verdict
from codriver.tasks.final_state import settled
from codriver.tasks.protocol import Split
from codriver.tasks.split import draw_problem
from codriver.verify.working import (
    Form,
    Working,
    check_working,
    right_steps,
    written_answers,
    written_steps,
    wrong_step,
)

WORDS_QUESTION = "What is {problem}? Write each step, then write Answer: and the number."
ENDING = {"compact": "=", "chained": ":"}
TYPED = re.compile(r"[0-9]{1,9}([+-][0-9]{1,9}){1,50}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Sums and differences, worked from left to right."""

    operands: int = 4
    """Numbers in a problem, at least 2."""
    min_operands: int = 0
    """Smallest number of operands; 0: always `operands`."""
    max_number: int = 9
    """Largest number in a problem."""
    subtract: bool = True
    """Mix subtraction in; running values stay at 0 or above."""
    max_value: int = 0
    """Running values stay at or below this (so digits alone can be enough); 0: no bound."""
    modulus: int = 0
    """Running values are taken modulo this; 0: plain integers."""
    style: Form = "compact"
    """compact, chained: for character models. words: for models that speak."""
    check: Literal["answer", "working"] = "answer"
    """answer: correct means the right final answer. working: every written step must be right too."""

    def __post_init__(self) -> None:
        if self.operands < 2:
            raise ValueError(f"operands: got {self.operands}, expected at least 2, change: write 2 or more")
        if self.min_operands and not 2 <= self.min_operands <= self.operands:
            raise ValueError(
                f"min_operands: got {self.min_operands}, expected 2 to operands ({self.operands}) or 0, "
                f"change: write 0 for a fixed number"
            )
        if self.max_number < 1:
            raise ValueError(f"max_number: got {self.max_number}, expected at least 1, change: write 9")
        if self.modulus < 0 or self.modulus == 1:
            raise ValueError(f"modulus: got {self.modulus}, expected 0 (off) or at least 2, change: write 0 or 10")
        if self.max_value and (self.modulus or not self.subtract or self.max_value < self.max_number):
            raise ValueError(
                f"max_value: got {self.max_value}, expected 0, or at least max_number ({self.max_number}) with "
                f"subtract: true and modulus: 0, change: write 0"
            )

    @property
    def name(self) -> str:
        return "arithmetic"

    def prompts(self, split: Split, *, seed: int, start: int, count: int) -> Sequence[Prompt]:
        return [
            self._prompt(split, draw_problem(self._draw, str, split, seed=seed, number=number))
            for number in range(start, start + count)
        ]

    def solution(self, prompt: Prompt) -> str:
        """The working from left to right, in the task's style."""
        steps = right_steps(_terms(prompt.id.rpartition("/")[2]), self.modulus)
        value = steps[-1][3]
        if self.style == "compact":
            return "".join(f"{a}{sign}{b}={c};" for a, sign, b, c in steps) + f"#{value}"
        if self.style == "chained":
            return f"{steps[0][0]}" + "".join(f"{sign}{b}={c}" for _, sign, b, c in steps) + f"#{value}"
        return "".join(f"{a} {sign} {b} = {c}\n" for a, sign, b, c in steps) + f"Answer: {value}"

    def verify(self, episode: Episode) -> Verdict:
        found = self._working(episode)
        ended = episode.finish in ("stop", "environment")
        answer_right = ended and found.answer is not None and found.answer == int(episode.prompt.reference)
        parts: dict[str, float | None] = {"answer": float(answer_right), "working": found.right_step_frac}
        if found.answer is None or not ended:
            detail = found.detail if ended else f"the completion ended by {episode.finish}"
            return Verdict(label="unparseable", reward=0.0, parts=parts, detail=detail)
        right = answer_right and (self.check == "answer" or found.all_steps_right)
        return Verdict(label="correct" if right else "incorrect", reward=float(right), parts=parts, detail=found.detail)

    def check_states(self, episode: Episode) -> Sequence[StateCheck]:
        """One state a written step, one an answer, and the end (`settled`).

        A step is judged as `verify` does, at its place and from the true running value. A wrong one is recoverable
        where only the answer counts (the next step may go on from the true value) and irrecoverable under
        `check: working`, which never reads a step again. What is written after the last step is not judged.
        """
        right = right_steps(_terms(episode.prompt.id.rpartition("/")[2]), self.modulus)
        wrong_label: StateLabel = "recoverable" if self.check == "answer" else "irrecoverable"
        checks = []
        for number, written in enumerate(written_steps(episode.text, self.style)):
            label: StateLabel = "on_path"
            constraint = ""
            if number >= len(right):
                label, constraint = "unknown", f"all {len(right)} steps stand before it"
            elif written.step != right[number]:
                label, constraint = wrong_label, wrong_step(number, written.step, right[number])
            if written.start < written.stop:
                checks.append(_state(written.start, written.stop, label, constraint))
        working = self._working(episode)
        for start, stop, value in written_answers(episode.text, self.style):
            if value != right[-1][3]:
                checks.append(_state(start, stop, "irrecoverable", f"the answer is {right[-1][3]}, written {value}"))
            elif self.check == "working" and not working.all_steps_right:
                checks.append(_state(start, stop, "recoverable", working.detail))
            else:
                checks.append(_state(start, stop, "on_path", ""))
        return settled(episode, self.verify(episode), checks)

    def prompt_of(self, gold: str) -> Prompt:
        """`gold` is a problem, such as `3+8-5`: numbers alone would leave the steps open."""
        problem = "".join(gold.split())
        if not TYPED.fullmatch(problem):
            raise ValueError(f"gold: got {gold[:60]!r}, expected a problem such as '3+8-5', change: write one")
        return self._prompt("typed", problem)

    def _working(self, episode: Episode) -> Working:
        terms = _terms(episode.prompt.id.rpartition("/")[2])
        return check_working(episode.text, terms=terms, modulus=self.modulus, form=self.style)

    def _prompt(self, split: str, problem: str) -> Prompt:
        terms = _terms(problem)
        spaced = problem.replace("+", " + ").replace("-", " - ")
        content = WORDS_QUESTION.format(problem=spaced) if self.style == "words" else problem + ENDING[self.style]
        return Prompt(
            id=f"arithmetic/{split}/{problem}",
            task="arithmetic",
            messages=(Message(role="user", content=content),),
            reference=str(right_steps(terms, self.modulus)[-1][3]),
            level=f"operands={len(terms)}",
        )

    def _draw(self, random: np.random.Generator) -> str:
        operands = int(random.integers(self.min_operands or self.operands, self.operands + 1))
        value = int(random.integers(0, self.max_number + 1))
        text = str(value)
        for _ in range(operands - 1):
            signs = [(sign, n) for n in range(self.max_number + 1) for sign in "+-" if self._may(value, sign, n)]
            sign, number = signs[int(random.integers(len(signs)))]
            value = self._reduce(value + number if sign == "+" else value - number)
            text += f"{sign}{number}"
        return text

    def _may(self, value: int, sign: str, number: int) -> bool:
        if sign == "-":
            return self.subtract and (self.modulus > 0 or number <= value)
        return not self.max_value or value + number <= self.max_value

    def _reduce(self, value: int) -> int:
        return value % self.modulus if self.modulus else value


def _state(start: int, stop: int, label: StateLabel, constraint: str) -> StateCheck:
    return StateCheck(turn=0, start=start, stop=stop, label=label, constraint=constraint)


def _terms(problem: str) -> list[tuple[str, int]]:
    """
    >>> _terms("3+8-5")
    [('+', 3), ('+', 8), ('-', 5)]
    """
    spaced = problem.replace("+", " + ").replace("-", " - ").split()
    return [("+", int(spaced[0]))] + [(spaced[i], int(spaced[i + 1])) for i in range(1, len(spaced), 2)]
