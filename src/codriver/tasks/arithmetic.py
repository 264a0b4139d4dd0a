"""Arithmetic with written working: `3+8-5=` is answered step by step, and every step can be checked.

compact   3+8-5=      3+8=11;11-5=6;#6
chained   3+8-5:      3+8=11-5=6#6
words     What is 3 + 8 - 5? ...      3 + 8 = 11\\n11 - 5 = 6\\nAnswer: 6
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from codriver.episode import Episode, Message, Prompt, Verdict
from codriver.tasks.protocol import HELD_OUT_SHARE, Split
from codriver.verify.working import Form, check_working

WORDS_QUESTION = "What is {problem}? Write each step, then write Answer: and the number."
ENDING = {"compact": "=", "chained": ":"}


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
        return [self._prompt(split, seed, number) for number in range(start, start + count)]

    def solution(self, prompt: Prompt) -> str:
        """The working from left to right, in the task's style."""
        text = prompt.id.rpartition("/")[2]
        steps, value = [], None
        for sign, number in _terms(text):
            if value is None:
                value = number
                continue
            result = self._reduce(value + number if sign == "+" else value - number)
            steps.append((value, sign, number, result))
            value = result
        if self.style == "compact":
            return "".join(f"{a}{sign}{b}={c};" for a, sign, b, c in steps) + f"#{value}"
        if self.style == "chained":
            return f"{steps[0][0]}" + "".join(f"{sign}{b}={c}" for _, sign, b, c in steps) + f"#{value}"
        return "".join(f"{a} {sign} {b} = {c}\n" for a, sign, b, c in steps) + f"Answer: {value}"

    def verify(self, episode: Episode) -> Verdict:
        problem = episode.prompt.id.rpartition("/")[2]
        found = check_working(episode.text, terms=_terms(problem), modulus=self.modulus, form=self.style)
        ended = episode.finish in ("stop", "environment")
        answer_right = ended and found.answer is not None and found.answer == int(episode.prompt.reference)
        parts: dict[str, float | None] = {"answer": float(answer_right), "working": found.right_step_frac}
        if found.answer is None or not ended:
            detail = found.detail if ended else f"the completion ended by {episode.finish}"
            return Verdict(label="unparseable", reward=0.0, parts=parts, detail=detail)
        right = answer_right and (self.check == "answer" or found.all_steps_right)
        return Verdict(label="correct" if right else "incorrect", reward=float(right), parts=parts, detail=found.detail)

    def _prompt(self, split: Split, seed: int, number: int) -> Prompt:
        """Draw until the problem's hash falls into the split; the same number gives the same problem for ever."""
        random = np.random.default_rng([seed, number, split == "heldout"])
        while True:
            problem = self._draw(random)
            if is_held_out(problem) == (split == "heldout"):
                break
        value = 0
        for sign, term in _terms(problem):
            value = self._reduce(value + term if sign == "+" else value - term)
        spaced = problem.replace("+", " + ").replace("-", " - ")
        content = WORDS_QUESTION.format(problem=spaced) if self.style == "words" else problem + ENDING[self.style]
        return Prompt(
            id=f"arithmetic/{split}/{problem}",
            task="arithmetic",
            messages=(Message(role="user", content=content),),
            reference=str(value),
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


def is_held_out(problem: str) -> bool:
    """Whether a problem belongs to the held-out split, in every run, for every seed."""
    return hashlib.sha256(problem.encode()).digest()[0] % HELD_OUT_SHARE == 0


def _terms(problem: str) -> list[tuple[str, int]]:
    """
    >>> _terms("3+8-5")
    [('+', 3), ('+', 8), ('-', 5)]
    """
    spaced = problem.replace("+", " + ").replace("-", " - ").split()
    return [("+", int(spaced[0]))] + [(spaced[i], int(spaced[i + 1])) for i in range(1, len(spaced), 2)]
