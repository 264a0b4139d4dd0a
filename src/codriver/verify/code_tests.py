"""Hidden tests as inputs and right outputs, read from JSON or, where possible, from assert statements."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codriver.verify.code_values import literal, same_value, shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One call and its right value."""

    id: str
    arguments: tuple[Any, ...]
    expected: Any
    named: Mapping[str, Any] = field(default_factory=dict)
    tuples_are_lists: bool = False
    """For tests written in JSON, which has no tuples."""
    is_identity: bool = False
    """`is True`, `is False`, `is None`: 1 will not do for True."""

    def __post_init__(self) -> None:
        literal((self.arguments, dict(self.named), self.expected))  # refuses what cannot be passed on

    def accepts(self, got: Any) -> bool:
        if self.is_identity:
            return got is self.expected
        return same_value(self.expected, got, tuples_are_lists=self.tuples_are_lists)

    def call(self, name: str) -> str:
        """
        >>> Case(id="1", arguments=(1, "a"), expected=3).call("f")
        "f(1, 'a')"
        """
        parts = [shown(value) for value in self.arguments] + [
            f"{key}={shown(value)}" for key, value in self.named.items()
        ]
        return f"{name}({', '.join(parts)})"


def cases_from_json(tests: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
    """From [{"input": [...], "output": ...}]; an input that is an object gives arguments by name.

    Raises ValueError: what is wrong with which test.
    """
    cases = []
    for number, test in enumerate(tests, start=1):
        if not isinstance(test, Mapping) or set(test) != {"input", "output"}:
            raise ValueError(f"test {number}: got {shown(test)}, expected an object with input and output")
        given = test["input"]
        if not isinstance(given, list | dict):
            raise ValueError(f"test {number}: got input {shown(given)}, expected a list of arguments, or an object")
        cases.append(
            Case(
                id=f"test {number}",
                arguments=tuple(given) if isinstance(given, list) else (),
                named=given if isinstance(given, dict) else {},
                expected=test["output"],
                tuples_are_lists=True,
            )
        )
    if not cases:
        raise ValueError("tests: got none, expected at least one")
    return tuple(cases)


def cases_from_asserts(text: str, entry_point: str) -> tuple[Case, ...]:
    """The cases that a test text says, if it says nothing else; empty: it must be run (`Problem.asserts`).

    Understood: `assert f(literals) == literal` and `is True | False | None`, in `def check(candidate):` or bare.

    Raises ValueError: not Python, or without an assertion.
    >>> [(c.arguments, c.expected) for c in cases_from_asserts("assert f(1, [2]) == 3", "f")]
    [((1, [2]), 3)]
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"tests: got a syntax error ({error}), expected Python") from None
    if not any(isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant) for node in ast.walk(tree)):
        raise ValueError("tests: got no assertion, expected at least one")
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if len(checks) > 1 or (checks and len(checks[0].args.args) != 1):
        return ()
    name = checks[0].args.args[0].arg if checks else entry_point
    body = checks[0].body if checks else tree.body
    others = [node for node in tree.body if node not in checks] if checks else []
    if not all(_says_nothing(node) for node in others):
        return ()
    cases = []
    for node in body:
        if _says_nothing(node):
            continue
        case = _case(node, name)
        if case is None:
            return ()
        cases.append(case)
    return tuple(cases)


def public_examples(cases: Sequence[Case], entry_point: str) -> str:
    """The cases as lines that anyone can read: `f(1, 2) == 3`."""
    return "\n".join(f"{case.call(entry_point)} == {case.expected!r}" for case in cases)


def _says_nothing(node: ast.stmt) -> bool:
    """Docstrings, `assert True`, `METADATA = {...}`, a bare name."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant | ast.Name)
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and bool(node.test.value)
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Assign)
        and all(isinstance(t, ast.Name) and t.id == "METADATA" for t in node.targets)
        and _value(node.value) is not None
    )


def _case(node: ast.stmt, name: str) -> Case | None:
    if not isinstance(node, ast.Assert) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
        return None
    call, right = node.test.left, node.test.comparators[0]
    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name
    is_identity = isinstance(node.test.ops[0], ast.Is)
    if not is_call or not (is_identity or isinstance(node.test.ops[0], ast.Eq)):
        return None
    assert isinstance(call, ast.Call)
    values = [_value(part) for part in (*call.args, *(k.value for k in call.keywords), right)]
    if any(value is None for value in values) or any(k.arg is None for k in call.keywords):
        return None
    plain = [value[0] for value in values if value is not None]
    if is_identity and not (plain[-1] is None or isinstance(plain[-1], bool)):
        return None
    named = {str(k.arg): v for k, v in zip(call.keywords, plain[len(call.args) : -1], strict=True)}
    arguments, expected = tuple(plain[: len(call.args)]), plain[-1]
    return Case(id=f"line {node.lineno}", arguments=arguments, named=named, expected=expected, is_identity=is_identity)


def _value(node: ast.expr) -> tuple[Any] | None:
    """The literal's value in a tuple, so that None can be one; None: no literal."""
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
