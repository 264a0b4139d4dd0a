r"""Reads the structure of an answer: numbers, tuples, intervals, sets, lists, matrices, relations, words.

Brackets are kept: (1,2), [1,2), {1,2} and a bare 1, 2 differ. Leaves are exact numbers where they can be, otherwise
LaTeX for `math_symbols`. `5 or 6`, `5 and 6`, `5, 6` and `\pm 5` are lists, so none of them equals 5.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from codriver.verify.math_exact import exact_value
from codriver.verify.math_latex import plain_latex
from codriver.verify.math_text import NotReadable, refuse_unreadable
from codriver.verify.math_units import FUNCTIONS, measured

OPEN, CLOSE = ("(", "[", "{", r"\{", r"\langle"), (")", "]", "}", r"\}", r"\rangle")
PIECE = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
RELATIONS = {
    "=": "=",
    r"\equiv": "=",
    r"\in": "=",
    "<": "<",
    r"\lt": "<",
    ">": ">",
    r"\gt": ">",
    r"\le": "<=",
    r"\leq": "<=",
    r"\leqslant": "<=",
    r"\ge": ">=",
    r"\geq": ">=",
    r"\geqslant": ">=",
    r"\ne": "!=",
    r"\neq": "!=",
    r"\approx": "~",
    r"\sim": "~",
}
THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
LEADING_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])", re.ASCII)
BASED = re.compile(r"([0-9A-F]+)\s*_\s*\{?\s*(\d+)\s*\}?", re.ASCII)
MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
WORDS = re.compile(r"[^\W\d_][^\W\d_' -]*(?:[ '-][^\W\d_]+)*")
PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z])")
TWO_NUMBERS = re.compile(r"[\d.]\s+[\d.]", re.ASCII)
NAME = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z]|_\{?\w+\}?|[-+ ()']|\\(?:text|mathrm)\{[A-Za-z ]*\})++", re.ASCII)
CONSTANTS = re.compile(r"(?:e|i|\\pi|\\infty)", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One answer, or one part of it."""

    kind: str
    """number, symbols, words, based, list, set, union, matrix, row, relation, or two brackets such as `[)`."""
    text: str = ""
    """LaTeX of `symbols`, the words, the digits and base, or a relation's signs separated by commas."""
    value: Fraction | None = None
    """Of a `number`, exact, `%` and `million` included."""
    items: tuple["Form", ...] = ()
    unit: str = ""
    is_known_unit: bool = True
    is_loose_unit: bool = True
    has_percent: bool = False


def read(text: str) -> Form:
    """The structure of an answer. Raises NotReadable: it has none."""
    refuse_unreadable(text)
    return _parse(plain_latex(text))


def is_name(side: str) -> bool:
    """Whether a side of an equation only names what the other side is: `x`, `f(x)`, `a+b`, `Area`; not `2x` or `e`."""
    return bool(NAME.fullmatch(side)) and not CONSTANTS.fullmatch(side.strip())


def _parse(text: str) -> Form:
    text = text.strip().strip(",;").strip()
    if not text:
        raise NotReadable("a part of the answer is empty")
    if THOUSANDS.fullmatch(text):
        return _leaf(text.replace(",", ""))
    parts = _split(text, (",", ";"))[0] if "{" in text or not LEADING_THOUSANDS.search(text) else None
    if parts is None:  # `$1,234`, `1,234 cm`: one number; in brackets a comma separates
        joined = LEADING_THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
        parts = _split(text, (",", ";"))[0] if text[0] in "([" else _split(joined, (",", ";"))[0]
    if len(parts) > 1:
        return _list(tuple(_parse(part) for part in parts if part.strip()))
    text = parts[0].strip()
    sides, signs = _split(text, tuple(RELATIONS))
    if signs:
        return _relation(sides, [RELATIONS[sign] for sign in signs])
    unions = _split(text, (r"\cup",))[0]
    if len(unions) > 1:
        return Form(kind="union", items=tuple(_parse(part) for part in unions))
    return _whole_bracket(text) or _matrix(text) or _plus_minus(text) or _leaf(text)


def _list(items: tuple[Form, ...]) -> Form:
    flat: list[Form] = []
    for item in items:
        flat.extend(item.items if item.kind == "list" else (item,))
    return flat[0] if len(flat) == 1 else Form(kind="list", items=tuple(flat))


def _relation(sides: list[str], signs: list[str]) -> Form:
    if "~" in signs:  # sqrt(2) ~ 1.41 says sqrt(2); x ~ 1.41 says 1.41
        if signs.count("~") != len(signs) - (signs[0] == "="):
            raise NotReadable("the answer mixes relations")
        named = is_name(sides[0])
        return _parse(sides[1 if named else 0])
    return Form(kind="relation", text=",".join(signs), items=tuple(_side(side) for side in sides))


def _side(text: str) -> Form:
    """A side that is only a name is kept as its text: `f(x)` is no product."""
    if is_name(text) and text.strip():
        return Form(kind="symbols", text=re.sub(r"\s+", "", text))
    return _parse(text)


def _split(text: str, separators: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Parts of the text between separators that stand outside all brackets, and the separators."""
    parts, found, depth, start, position = [], [], 0, 0, 0
    environments = 0
    for match in PIECE.finditer(text):
        piece, position = match[0], match.start()
        depth += (piece in OPEN) - (piece in CLOSE)
        environments += (piece == r"\begin") - (piece == r"\end")
        if depth <= 0 and environments == 0 and piece in separators:
            parts.append(text[start:position])
            found.append(piece)
            start = match.end()
    return [*parts, text[start:]], found


def _whole_bracket(text: str) -> Form | None:
    """A tuple, interval, set or vector whose brackets hold the whole text."""
    pieces = [match[0] for match in PIECE.finditer(text)]
    if pieces[0] not in OPEN or pieces[-1] not in CLOSE or len(pieces) < 2:
        return None
    depth = 0
    for number, piece in enumerate(pieces):
        depth += (piece in OPEN) - (piece in CLOSE)
        if depth == 0 and number < len(pieces) - 1:
            return None
    if depth:
        return None
    opening, closing = pieces[0], pieces[-1]
    inside = text[len(opening) : len(text) - len(closing)]
    if not inside.strip():
        return Form(kind="set") if opening == r"\{" else None
    items = tuple(_parse(part) for part in _split(inside, (",", ";"))[0])
    if opening == r"\{" and closing == r"\}":
        flat = _list(items)
        return Form(kind="set", items=flat.items if flat.kind == "list" else (flat,))
    if opening == "{" or (len(items) == 1 and opening + closing == "()"):
        return _list(items)
    if len(items) == 1:
        return None if opening + closing == "[]" and not inside.strip() else Form(kind=opening + closing, items=items)
    return Form(kind=opening + closing, items=items)


def _matrix(text: str) -> Form | None:
    match = MATRIX.fullmatch(text)
    if not match:
        return None
    rows = [row for row in re.split(r"\\\\", match[2]) if row.strip()]
    return Form(
        kind="matrix",
        items=tuple(Form(kind="row", items=tuple(_parse(cell) for cell in row.split("&"))) for row in rows),
    )


def _plus_minus(text: str) -> Form | None:
    if text.count(r"\pm") + text.count(r"\mp") == 0:
        return None
    plus = text.replace(r"\pm", "+").replace(r"\mp", "-")
    minus = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return _list((_leaf(plus.strip().removeprefix("+").strip()), _leaf(minus)))


def _leaf(text: str) -> Form:
    text = text.strip()
    if match := BASED.fullmatch(text):
        return Form(kind="based", text=f"{match[1]}_{match[2]}")
    if WORDS.fullmatch(text) and text not in FUNCTIONS and (len(text) > 2 or not text.isascii()):
        return Form(kind="words", text=" ".join(text.split()))
    found = measured(text)
    body = found.text.strip()
    around = dict(
        unit=found.unit,
        is_known_unit=found.is_known,
        is_loose_unit=found.is_loose,
        has_percent=found.has_percent,
    )
    body = body.replace(",", "") if THOUSANDS.fullmatch(body) else body
    value = exact_value(body)
    if value is not None:
        return Form(kind="number", value=value * found.factor, **around)  # type: ignore[arg-type]
    if prose := [w for w in PROSE.findall(body) if w not in FUNCTIONS] if " " in body else []:
        return Form(kind="words", text=" ".join(text.split()) or prose[0])
    if TWO_NUMBERS.search(body):
        raise NotReadable("two numbers stand side by side in the answer")
    latex = re.sub(r"\s+", " ", body)
    if found.factor != 1:
        latex = rf"\frac{{{found.factor.numerator}}}{{{found.factor.denominator}}}({latex})"
    return Form(kind="symbols", text=latex, **around)  # type: ignore[arg-type]
