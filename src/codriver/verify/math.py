r"""Judges the final answer of a completion against a reference answer: `check_math`.

    correct       the answer is the reference: same text, same exact number, or the same expression
    incorrect     it is another one, or there are several different boxes
    unparseable   there is no answer, or none that can be read and worked with in `LIMIT_S` seconds

A fault of the verifier itself (no process can be started, or the reference alone cannot be worked with) is none of
these: `VerifierFault` is raised, and the caller counts the episode as invalid.

Decisions, each with tests in `tests/verify/test_math.py`:
- Several boxes must all be right. `5 or 6`, `5, 6`, `\pm 5` are lists of two, never 5.
- Numbers are exact: 0.333 is not 1/3 and 3.14159265 is not pi, unless `tolerance` says how near is near enough.
- A percent sign is a factor: 50% is 1/2 and not 50, unless `percent` is on.
- Units (known ones, and any that the reference itself has) may be missing on one side, but never differ; nothing is
  converted. `million`, `dozen` are factors. `units: exact` wants them on both sides.
- `x = 5` is 5; `y = 5` is not `x = 5`. `2 + 3 = 5` is 5, `2 + 2 = 5` is nothing.
- (1,2), [1,2), {1,2} are three things. A bare list is a set, in any order, with the same count. {5} is 5.
  A column is no tuple. `1,234` is one number outside brackets, two inside.
- `101_2` is only `101_2`. Case matters: A is not a. Words are compared as text, but `Even` is `even`.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from codriver.errors import CodriverError
from codriver.verify.math_equal import Rules, same
from codriver.verify.math_form import Form, read
from codriver.verify.math_text import MAX_BOXES, NotReadable, final_answer
from codriver.verify.workers import JobFailed, WorkerPool

__all__ = ["LIMIT_S", "MathCheck", "Rules", "VerifierFault", "check_math", "readable_gold"]

LIMIT_S = 2.0
"""Wall seconds of one symbolic comparison, from when a worker starts on it."""
MEMORY_MB = 1024
Label = Literal["correct", "incorrect", "unparseable"]
DEFAULT_RULES = Rules()

_pool = WorkerPool(
    "codriver.verify.math_symbols:judge",
    size=max(1, min(4, os.cpu_count() or 1)),
    limit_s=LIMIT_S,
    memory_mb=MEMORY_MB,
)


class VerifierFault(CodriverError):
    """The verifier itself failed; nothing is known about the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MathCheck:
    """What is said of one completion."""

    label: Label
    answer: str
    """The final answer as written; empty where there is none."""
    detail: str = ""
    """Why, in words; empty when correct."""


def check_math(gold: str, text: str, *, rules: Rules = DEFAULT_RULES, is_cut: bool = False) -> MathCheck:
    r"""Judges a completion; threads may call it at the same time. `is_cut`: the completion hit its length limit.

    Raises ValueError: the reference cannot be read. VerifierFault: the verifier failed.

    >>> check_math("1/2", r"So it is \boxed{0.5}.").label, check_math("5", r"\boxed{5} or \boxed{6}").label
    ('correct', 'incorrect')
    """
    readable_gold(gold)
    found = final_answer(text, is_cut=is_cut)
    if not found.answers:
        return MathCheck(label="unparseable", answer="", detail=found.detail)
    last = found.answers[0][:200]
    if len(found.answers) > MAX_BOXES:
        return MathCheck(label="incorrect", answer=last, detail=f"{len(found.answers)} different boxed answers")
    label, detail = _compare(gold, found.answers[0], rules)
    if label != "correct":
        return MathCheck(label=label, answer=last, detail=detail)
    for other in found.answers[1:]:
        if _compare(gold, other, rules)[0] != "correct":
            return MathCheck(label="incorrect", answer=last, detail=f"another box says {other[:80]!r}")
    return MathCheck(label="correct", answer=last)


def readable_gold(gold: str) -> Form:
    """The structure of a reference answer. Raises ValueError: no answer could ever be compared with it."""
    try:
        return _read_gold(gold)
    except NotReadable as error:
        raise ValueError(f"the reference answer {gold[:60]!r} cannot be used: {error}") from error


@lru_cache(maxsize=4096)
def _read_gold(gold: str) -> Form:
    found = final_answer(gold)
    return read(found.answers[0] if found.answers and "boxed" in gold else gold)


class _NeedsSymbols(Exception):
    """Only a worker can tell."""


def _needs_symbols(gold: str, answer: str) -> bool:
    raise _NeedsSymbols


@lru_cache(maxsize=8192)
def _compare(gold: str, answer: str, rules: Rules) -> tuple[Label, str]:
    """One answer with the reference, here where that is enough. Kept: a group repeats its answers."""
    try:
        is_right = same(_read_gold(gold), read(answer), rules, _needs_symbols)
    except NotReadable as error:
        return "unparseable", str(error)
    except _NeedsSymbols:
        return _compare_symbols(gold, answer, rules)
    return ("correct", "") if is_right else ("incorrect", _says(answer, gold))


def _compare_symbols(gold: str, answer: str, rules: Rules) -> tuple[Label, str]:
    request = {
        "gold": _unboxed_gold(gold),
        "answer": answer,
        "percent": rules.percent,
        "units": rules.units,
        "tolerance": rules.tolerance,
    }
    try:
        reply = _ask(request)
    except JobFailed as error:
        _blame_the_answer(gold, error)
        return "unparseable", f"the answer could not be worked with: {error}"
    if "unreadable" in reply:
        return "unparseable", reply["unreadable"]
    if "gold_unreadable" in reply:
        return "incorrect", f"{_says(answer, gold)} (compared as text: {reply['gold_unreadable']})"
    return ("correct", "") if reply["right"] else ("incorrect", _says(answer, gold))


def _unboxed_gold(gold: str) -> str:
    found = final_answer(gold)
    return found.answers[0] if found.answers and "boxed" in gold else gold


def _ask(request: dict[str, object]) -> dict[str, str]:
    """Once more after a crash: something from outside, such as the system's memory killer, may have hit the process."""
    for is_last in (False, True):
        try:
            reply: dict[str, str] = _pool.ask(request)
            return reply
        except JobFailed as error:
            if error.kind != "crash" or is_last:
                raise
    raise AssertionError("unreachable")


def _blame_the_answer(gold: str, error: JobFailed) -> None:
    """Raises VerifierFault where the reference alone fails too."""
    try:
        _probe(gold)
    except JobFailed as fault:
        raise VerifierFault(f"the reference answer {gold[:60]!r} cannot be worked with: {fault}") from error


@lru_cache(maxsize=1024)
def _probe(gold: str) -> None:
    _pool.ask({"gold": _unboxed_gold(gold), "probe": True})


def _says(answer: str, gold: str) -> str:
    return f"said {answer[:80]!r}, expected {gold[:80]!r}"
