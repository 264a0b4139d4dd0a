"""Plain data between this process and a box: written as Python literals, read from JSON that may come from a liar."""

import json
import math
from typing import Any

MAX_DEPTH = 60
"""Of nested values, both ways; Python's own parser ends at 200 brackets, and a line has a few of its own."""
MAX_HASHED = 5000
"""Members of sets and dicts in one answer. Keys can be chosen to collide, and then time grows with the square."""
MAX_SHOWN = 160
KIND: dict[type, str] = {tuple: "", set: "set", frozenset: "frozenset"}


class NotPlainAnswer(ValueError):
    """What came from the box is not an answer in the agreed form."""


def literal(value: Any, depth: int = 0) -> str:
    """A Python literal for `value`, on one line, that `eval` in the box turns back into an equal value of equal type.

    >>> literal((1, [True, None, float("nan")], {"a": frozenset()}))
    "((1,[True,None,nan],{'a':frozenset(()),},))"
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"literal: got a value nested deeper than {MAX_DEPTH}, expected a flatter one")
    if type(value) is int:
        return hex(value) if abs(value) > 1 << 64 else str(value)  # decimal digits have a limit in Python, hex has none
    if type(value) is str:
        return ascii(value)
    if value is None or type(value) in (bool, float, bytes):
        return repr(value)
    if type(value) is complex:
        return f"complex({value.real!r},{value.imag!r})"
    if type(value) is dict:
        pairs = (f"{literal(k, depth + 1)}:{literal(v, depth + 1)}," for k, v in value.items())
        return "{" + "".join(pairs) + "}"
    if type(value) in (list, tuple, set, frozenset):
        items = "".join(literal(item, depth + 1) + "," for item in value)
        return f"[{items.removesuffix(',')}]" if type(value) is list else f"{KIND[type(value)]}(({items}))"
    raise ValueError(f"literal: got a {type(value).__name__}, expected plain data (numbers, text, lists, dicts, sets)")


def read_line(line: bytes) -> list[Any]:
    """A line of a box, as JSON. Raises NotPlainAnswer."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotPlainAnswer(f"what came is not an answer ({type(error).__name__})") from None
    if not isinstance(found, list) or not found:
        raise NotPlainAnswer("what came is not an answer")
    return found


def decoded(value: Any) -> Any:
    """The value behind `code_inside.encoded`. Only plain types can come out, whatever went in.

    >>> decoded(["l", 1, ["t", 2.5], ["i", "ff"]])
    [1, (2.5,), 255]
    """
    try:
        return _decoded(value, 0, [0])
    except (TypeError, ValueError, IndexError, RecursionError, AttributeError) as error:
        raise NotPlainAnswer(f"what came is not plain data ({error})") from None


def _decoded(value: Any, depth: int, hashed: list[int]) -> Any:
    if not isinstance(value, list | dict):
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    mark, *rest = value  # a JSON object has no place in the form: its first key is no mark either
    if isinstance(value, dict) or not isinstance(mark, str):
        raise ValueError("an unknown form")
    if mark == "i":
        return int(rest[0], 16)
    if mark == "f":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(rest[0], math.nan)
    if mark == "b":
        return bytes.fromhex(rest[0])
    if mark == "c":
        return complex(_decoded(rest[0], depth + 1, hashed), _decoded(rest[1], depth + 1, hashed))
    if mark in "sdz":
        hashed[0] += len(rest)
        if hashed[0] > MAX_HASHED:
            raise ValueError(f"more than {MAX_HASHED} members in sets and dicts")
    if mark == "d":
        return {_decoded(k, depth + 1, hashed): _decoded(v, depth + 1, hashed) for k, v in rest}
    kind = {"l": list, "t": tuple, "s": set, "z": frozenset}[mark] if mark in "ltsz" and mark else None
    if kind is None:
        raise ValueError("an unknown mark")
    return kind(_decoded(item, depth + 1, hashed) for item in rest)


def same_value(expected: Any, got: Any, *, tuples_are_lists: bool = False) -> bool:
    """Python's `==` on plain data, with two differences: NaN equals NaN, and, where asked, a tuple equals a list.

    So 1 == 1.0 and True == 1 hold as they do in Python, and 0.1 + 0.2 is not 0.3.

    >>> same_value([1, (2,)], [1.0, (2,)]), same_value([1, 2], (1, 2))
    (True, False)
    >>> same_value([1, 2], (1, 2), tuples_are_lists=True)
    True
    """
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        is_kind = tuples_are_lists or type(expected) is type(got)
        return (
            is_kind
            and len(expected) == len(got)
            and all(same_value(a, b, tuples_are_lists=tuples_are_lists) for a, b in zip(expected, got, strict=True))
        )
    if isinstance(expected, dict) and isinstance(got, dict):
        return expected.keys() == got.keys() and all(
            same_value(value, got[key], tuples_are_lists=tuples_are_lists) for key, value in expected.items()
        )
    if isinstance(expected, float) and isinstance(got, float) and math.isnan(expected) and math.isnan(got):
        return True
    return bool(expected == got)


def shown(value: Any) -> str:
    """For a detail: short, whatever the value.

    >>> shown(10**5000)
    'an integer of 16610 bits'
    """
    if isinstance(value, int) and value.bit_length() > 2000:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits inside
        text = f"a {type(value).__name__} with a huge integer"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
