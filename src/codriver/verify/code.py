"""Judges a completion that must define a function, by hidden tests. The candidate's process never holds what is right:
it gets the inputs, one by one, and what it answers is compared in this process (or, for statements that only Python can
judge, in a second box that holds the tests and asks the candidate's box for each call).

A candidate can therefore lie about nothing but values, and giving the right values is solving the problem.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from codriver.verify.code_tests import Case
from codriver.verify.code_values import NotPlainAnswer, decoded, literal, read_line, shown
from codriver.verify.sandbox import Box, Limits, Sandbox, SandboxError

FENCE = re.compile(r"^[ \t]*(?:```|~~~)")
MAX_CODE_CHARACTERS = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A function to write, and how it is tested."""

    entry_point: str
    """Name of the function."""
    cases: tuple[Case, ...] = ()
    """Inputs and right outputs."""
    asserts: str = ""
    """Test statements for what cases cannot say: `def check(candidate): ...`, or asserts that call `entry_point`."""
    answer_form: Literal["function", "expression"] = "function"
    """expression: the whole completion is what stands behind `starter`, on one line."""
    preamble: str = ""
    """Code that the problem gives: imports and helpers."""
    starter: str = ""
    """Code that an answer may continue: `def f(x):` for an answer that is only the body, `f = lambda x: `."""
    reference: str = ""
    """A right program, which `asserts` may call by the function's own name. Never in the candidate's box."""

    def __post_init__(self) -> None:
        if bool(self.cases) == bool(self.asserts.strip()):
            raise ValueError(f"Problem {self.entry_point}: expected cases or asserts, got both or none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What the tests say of one program."""

    label: Literal["correct", "incorrect", "unparseable"]
    """unparseable: no code, no definition of the function in it, or a syntax error."""
    tests_frac: float
    """Share of the tests that passed; for information: 0.9 is still incorrect."""
    detail: str = ""
    """The first test that failed, and what came."""


@dataclass(kw_only=True)
class _Tally:
    """Outcomes by test; a test without an outcome has failed."""

    failed: dict[str, str] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)

    def judgement(self, required: "set[str]") -> Judgement:
        passed = required & (self.passed - set(self.failed))
        if required and passed == required and not self.failed:
            return Judgement(label="correct", tests_frac=1.0)
        detail = next((f"{test}: {why}" for test, why in self.failed.items()), "")
        detail = detail or (f"{min(required - passed)}: no outcome" if required else "no test was run")
        return Judgement(label="incorrect", tests_frac=len(passed) / max(len(required), 1), detail=detail)


def extract_code(text: str, entry_point: str = "") -> str:
    """The last fenced block that defines `entry_point`, else the last fenced block, else the whole text.

    A block that is not closed reaches to the end of the text: a stop string may have cut its fence.

    >>> extract_code("Like so:\\n```python\\nf = abs\\n```\\nDone.")
    'f = abs'
    """
    blocks: list[str] = []
    inside: list[str] | None = None
    for line in text.split("\n"):
        if not FENCE.match(line):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            inside = []
        else:
            blocks.append("\n".join(inside))
            inside = None
    if inside is not None:
        blocks.append("\n".join(inside))
    if not blocks:
        return text
    defining = [block for block in blocks if entry_point and _defines(block, entry_point)]
    return (defining or blocks)[-1]


def judge_code(completion: str, problem: Problem, *, sandbox: Sandbox, limits: Limits | None = None) -> Judgement:
    """Run the completion's function on the problem's tests.

    Raises: SandboxError: the sandbox, not the program, failed.
            ValueError:   the problem's own tests are broken.
    """
    code = _program(completion, problem)
    if isinstance(code, Judgement):
        return code
    with sandbox.open(_inside("candidate_main()"), limits=limits) as box:
        given = {"preamble": problem.preamble, "code": code, "entry_point": problem.entry_point}
        box.send(literal(given).encode() + b"\n")
        start = _reply(box)
        if start.mark == 2:
            return Judgement(label="unparseable", tests_frac=0.0, detail=f"syntax error: {start.text}")
        if start.mark != 3:
            return Judgement(label="incorrect", tests_frac=0.0, detail=f"before the first test: {start.text}")
        if problem.cases:
            return _judge_cases(box, problem)
        return _judge_asserts(box, problem, sandbox, limits)


def _program(completion: str, problem: Problem) -> str | Judgement:
    """The program to run: the answer's code, behind the starter where it continues that."""

    def none(detail: str) -> Judgement:
        return Judgement(label="unparseable", tests_frac=0.0, detail=detail)

    if len(completion) > MAX_CODE_CHARACTERS:
        return none(f"longer than {MAX_CODE_CHARACTERS} characters")
    if problem.answer_form == "expression":
        answer = completion.strip()
        return none("no single line of code") if not answer or "\n" in answer else problem.starter + answer
    code = extract_code(completion, problem.entry_point)
    if not code.strip():
        return none("no code")
    if _defines(code, problem.entry_point):
        return code
    if problem.starter and code.lstrip("\n\r")[:1] in (" ", "\t"):
        return problem.starter + code
    return none(f"no definition of {problem.entry_point}")


def _defines(code: str, name: str) -> bool:
    """Whether the name stands where a definition could be; the box finds out whether it is one."""
    name = re.escape(name)
    return (
        re.search(rf"\bdef[ \t]+{name}\b|\b{name}\b[^\n=]*=|\bimport\b[^\n]*\b{name}\b|\bclass[ \t]+{name}\b", code)
        is not None
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reply:
    """What the candidate's box answered; `mark` as in `code_inside.candidate_main`, -1: nothing that counts."""

    mark: int
    value: Any = None
    text: str = ""
    error: str = "RuntimeError"


def _reply(box: Box) -> _Reply:
    """Read as if a liar had written it: the candidate may have."""
    line = box.answer()
    if line is None:
        why = {"": "the program ended", "killed": "the program was killed"}.get(
            box.limit, f"the {box.limit} limit was hit"
        )
        return _Reply(mark=-1, text=why)
    try:
        found = read_line(line)
        mark = found[0]
        if mark == 0 and type(mark) is int and len(found) == 2:
            return _Reply(mark=0, value=decoded(found[1]))
        if mark == 1 and len(found) == 3 and all(isinstance(part, str) for part in found[1:]):
            return _Reply(mark=1, text=f"raised {found[1]}: {found[2]}"[:400], error=found[1])
        if mark in (2, 3) and type(mark) is int:
            return _Reply(mark=mark, text=str(found[1])[:400] if len(found) > 1 else "")
    except NotPlainAnswer as error:
        return _Reply(mark=-1, text=str(error)[:400])
    return _Reply(mark=-1, text="what came is not an answer")


def _ask(box: Box, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> _Reply:
    box.send(literal((arguments, dict(named))).encode() + b"\n")
    reply = _reply(box)
    return reply if reply.mark in (0, 1) else _Reply(mark=-1, text=reply.text or "what came is not an answer")


def _judge_cases(box: Box, problem: Problem) -> Judgement:
    tally = _Tally()
    for case in problem.cases:
        reply = _ask(box, case.arguments, case.named)
        if reply.mark != 0:
            tally.failed[case.id] = f"{case.call(problem.entry_point)} {reply.text}"
        elif case.accepts(reply.value):
            tally.passed.add(case.id)
        else:
            call, right = case.call(problem.entry_point), shown(case.expected)
            tally.failed[case.id] = f"{call} is {right}, got {shown(reply.value)}"
    return tally.judgement({case.id for case in problem.cases})


def _judge_asserts(box: Box, problem: Problem, sandbox: Sandbox, limits: Limits | None) -> Judgement:
    """The statements run in a box of their own; this process carries calls and values between the two boxes."""
    given = {"tests": problem.asserts, "reference": problem.reference, "entry_point": problem.entry_point}
    num_answers = 0
    with sandbox.open(_inside("asserts_main()"), limits=limits) as tests:
        tests.send(literal(given).encode() + b"\n")
        while (line := tests.answer()) is not None:
            said = decoded(read_line(line))
            if said[0] == "done":
                return _judge_rows(problem, said[1], said[2], said[3], num_answers)
            reply = _ask(box, said[1], said[2])
            num_answers += reply.mark == 0
            answer = (True, reply.value) if reply.mark == 0 else (False, reply.error, reply.text)
            tests.send(literal(answer).encode() + b"\n")
        result = tests.result()
    if not num_answers or result.limit == "":
        raise SandboxError(f"tests of {problem.entry_point}: ended early: {result.limit} {result.stderr[-300:]}")
    detail = f"the tests hit the {result.limit} limit on what the function gave"
    return Judgement(label="incorrect", tests_frac=0.0, detail=detail)


def _judge_rows(problem: Problem, rows: list[Any], stopped: str, message: str, num_answers: int) -> Judgement:
    if stopped == "tests":
        raise ValueError(f"tests of {problem.entry_point} are broken: {message}")
    if not rows:
        raise ValueError(f"tests of {problem.entry_point} are broken: there is no assertion in them")
    tally = _Tally()
    for line, passed, detail in rows:
        if passed:
            tally.passed.add(f"line {line}")
        else:
            source = problem.asserts.split("\n")[line - 1].strip()[:120]
            tally.failed[f"line {line}"] = f"{source}: {detail}"
    if stopped:
        tally.failed["the end"] = message
    if not num_answers:
        tally.failed["calls"] = "the function gave no value"
    return tally.judgement({f"line {line}" for line, _, _ in rows})


@lru_cache(maxsize=4)
def _inside(call: str) -> str:
    return Path(__file__).with_name("code_inside.py").read_text() + "\n" + call
