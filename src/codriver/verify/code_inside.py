"""Programs for inside a box: one calls the candidate's function, one runs assert statements without the candidate.

Sent as text (see `code_runs`), so: the standard library alone, and nothing slow to import. A line that comes is a
Python literal written by the parent; a line that goes is JSON, because the parent must be able to read it from a liar.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from _json import (
        encode_basestring_ascii as quoted,
    )  # the whole of `json` takes as long to import as Python to start
except ImportError:
    from json.encoder import py_encode_basestring_ascii as quoted

LARGEST_PLAIN_INTEGER = 1 << 53
NAMES = {"nan": float("nan"), "inf": float("inf"), "frozenset": frozenset, "set": set}
NAMES |= {"complex": complex, "__builtins__": {}}


class NotPlain(TypeError):
    """A value that is no number, text, list, tuple, set or dict of such."""


def encoded(value: object) -> str:
    """JSON with marks for what JSON does not have. A subclass of a plain type counts by its content alone, so an
    object that says it equals everything has nothing to say."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return str(number) if abs(number) < LARGEST_PLAIN_INTEGER else f'["i","{number:x}"]'
    if isinstance(value, float):
        plain = float.__add__(value, 0.0)
        return repr(plain) if plain - plain == 0 else f'["f","{plain!r}"]'
    if isinstance(value, str):
        return str(quoted(str.__str__(value)))
    if isinstance(value, complex):
        return f'["c",{encoded(value.real)},{encoded(value.imag)}]'
    if isinstance(value, bytes):
        return f'["b","{bytes.hex(value)}"]'
    if isinstance(value, dict):
        pairs = [f"[{encoded(key)},{encoded(dict.__getitem__(value, key))}]" for key in dict.keys(value)]
        return f'["d",{",".join(pairs)}]' if pairs else '["d"]'
    for kind, mark in ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z")):
        if isinstance(value, kind):
            return f'["{mark}"' + "".join("," + encoded(item) for item in kind.__iter__(value)) + "]"  # type: ignore[arg-type]
    raise NotPlain(f"a value of type {type(value).__name__} is not plain data")


def says(channel: int, line: str) -> None:
    data = line.encode("ascii") + b"\n"
    while data:
        data = data[os.write(channel, data) :]


def candidate_main() -> None:
    """Run the candidate's code, then call its function with each request's arguments.

    Says `[0, value]`, `[1, "ErrorType", "message"]`, `[2, message]` (a syntax error), `[3]` (ready).
    """
    channel, questions = int(sys.argv[1]), os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # input() finds nothing, and takes no question away
    given = eval(questions.readline(), NAMES)
    module = type(sys)("solution")
    sys.modules["solution"] = module  # dataclasses and pickle look their module up
    try:
        if given["preamble"]:
            exec(compile(given["preamble"], "<given>", "exec"), module.__dict__)
        code = compile(given["code"], "<answer>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        return says(channel, f"[2,{quoted(_described(error))}]")
    try:
        exec(code, module.__dict__)
        function = module.__dict__[given["entry_point"]]
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the program's end is not the judge's
        return says(channel, _raised(error))
    says(channel, "[3]")
    for line in questions:
        arguments, named = eval(line, NAMES)
        try:
            answer = f"[0,{encoded(function(*arguments, **named))}]"
        except BaseException as error:
            answer = _raised(error)
        says(channel, answer)


def _raised(error: BaseException) -> str:
    return f"[1,{quoted(type(error).__name__[:100])},{quoted(_described(error))}]"


def _described(error: BaseException) -> str:
    try:
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        return str(text)[:300] + where
    except BaseException:  # a candidate's exception may raise when it is shown
        return "an error that cannot be shown"


def asserts_main() -> None:
    """Run assert statements; each call of the function is asked from the parent, which asks the candidate's box.

    Says `["call", arguments, named]` and reads `(True, value)` or `(False, "ErrorType", "message")`; at the end
    `["done", [[line, passed, detail], ...], error, message]`; error: what stopped the statements, not the candidate.
    """
    channel, answers = int(sys.argv[1]), os.fdopen(os.dup(0), "rb")
    given = eval(answers.readline(), NAMES)
    notes: dict[int, tuple[bool, str]] = {}
    lines: set[int] = set()
    stopped, message = "", ""

    def candidate(*arguments: object, **named: object) -> object:
        says(channel, f'["l","call",{encoded(arguments)},{encoded(named)}]')
        reply = eval(answers.readline(), NAMES)
        if reply[0]:
            return reply[1]
        error = _error_type(reply[1])(reply[2])
        error.is_of_the_candidate = True  # type: ignore[attr-defined]
        raise error

    def note(line: int, passed: bool, detail: str = "") -> None:
        before = notes.get(line, (True, ""))
        notes[line] = before if not before[0] else (passed, detail)

    def judge(line: int, value: object) -> None:
        note(line, bool(value), "" if value else "the assertion does not hold")

    def failed(line: int, error: BaseException) -> None:
        if _is_fault_of_the_tests(error):
            raise error
        note(line, False, f"raised {type(error).__name__}: {_described(error)}")

    try:
        tree, lines = _with_judges(given["tests"])
        has_check = "\ndef check(" in "\n" + given["tests"]
        space: dict[str, object] = {"__name__": "tests"}
        if given["reference"]:
            exec(compile(given["reference"], "<reference>", "exec"), space)
        if not (has_check and given["reference"]):
            space[given["entry_point"]] = candidate
        space |= {"__judge__": judge, "__failed__": failed, "candidate": candidate}
        exec(compile(tree, "<tests>", "exec"), space)
        if has_check:
            space["check"](candidate)  # type: ignore[operator]
        for line in lines - set(notes):
            note(line, False, "this assertion was never reached")
    except BaseException as error:
        stopped, message = "candidate", f"{type(error).__name__}: {_described(error)}"
        if _is_fault_of_the_tests(error):
            stopped = "tests"
        for line in lines - set(notes):
            note(line, False, "this assertion was never reached: " + message)
    rows = [[line, *notes[line]] for line in sorted(notes)]
    says(channel, encoded(["done", rows, stopped, message]))


def _is_fault_of_the_tests(error: BaseException) -> bool:
    is_broken = isinstance(error, (NameError, ImportError, SyntaxError, NotPlain))
    return is_broken and not hasattr(error, "is_of_the_candidate")


def _error_type(name: str) -> "type[BaseException]":
    """The built-in exception of this name, so that tests can catch it. Those that end a loop quietly are not let
    through: in `all(map(candidate, xs))` a StopIteration would count as success."""
    import builtins

    kind = getattr(builtins, name, None)
    is_quiet = name in ("StopIteration", "StopAsyncIteration", "GeneratorExit")
    if not isinstance(kind, type) or not issubclass(kind, Exception) or is_quiet:
        return RuntimeError
    try:
        kind("a message")
    except TypeError:  # UnicodeDecodeError and groups need more than a message
        return RuntimeError
    return kind


def _with_judges(text: str) -> "tuple[Any, set[int]]":
    """The tests with every assert replaced by a call that notes its outcome and goes on; the lines of those asserts."""
    import ast

    lines: set[int] = set()

    class Judges(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> ast.AST:
            if isinstance(node.test, ast.Constant):
                return ast.copy_location(ast.Pass(), node)  # `assert True` tests nothing
            lines.add(node.lineno)

            def call(name: str, value: ast.expr) -> ast.stmt:
                return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(node.lineno), value], []))

            handler = ast.ExceptHandler(
                ast.Name("Exception", ast.Load()), "__error__", [call("__failed__", ast.Name("__error__", ast.Load()))]
            )
            return ast.copy_location(ast.Try([call("__judge__", node.test)], [handler], [], []), node)

    tree = ast.fix_missing_locations(Judges().visit(ast.parse(text)))
    return tree, lines
