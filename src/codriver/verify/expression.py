"""Exact value of a written expression of whole numbers, `+ - * /` and parentheses. Nothing is ever run as code.

    sum     = product (("+" | "-") product)*
    product = atom (("*" | "/") atom)*
    atom    = number | name | "(" sum ")"

No signs before a number, no powers, no decimals, no multiplication by juxtaposition: what is not in the grammar is
refused, since each further way to write is a way to write what was not meant.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 400
"""Characters of an expression; with MAX_DIGITS this bounds every exact value to some thousand digits."""
MAX_DIGITS = 9
MAX_DEPTH = 30
TOKEN = re.compile(r"\s*([0-9]+|[A-Za-z]+|[-+*/()])", re.ASCII)
TYPESET = str.maketrans({"×": "*", "⋅": "*", "·": "*", "÷": "/", "−": "-"})
"""Operators as language models typeset them; each is one character for one character."""


class ExpressionError(ValueError):
    """The text is no expression of the grammar, or is too large."""


class NoValue(ExpressionError):
    """An expression that can be read and has no value: something is divided by zero."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that could be read."""

    value: Fraction
    numbers: tuple[int, ...]
    """Every number that is written, in order; one that is written twice is here twice."""


def read_expression(text: str, names: Mapping[str, Fraction | int] | None = None) -> Expression:
    """The exact value of an expression, `names` standing for values.

    Raises:
        ExpressionError: not of the grammar, an unknown name, over a size limit; NoValue: division by zero.

    >>> read_expression("(3+5)*7/2")
    Expression(value=Fraction(28, 1), numbers=(3, 5, 7, 2))
    >>> read_expression("1 2 + 3")
    Traceback (most recent call last):
    codriver.verify.expression.ExpressionError: expected an operator, got '2'
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expected at most {MAX_LENGTH} characters, got {len(text)}")
    return _Reader(_tokens(text.translate(TYPESET)), names or {}).whole()


def _tokens(text: str) -> list[str]:
    found, position, text = [], 0, text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            raise ExpressionError(f"expected numbers, + - * / and parentheses, got {text[position:].lstrip()[:1]!r}")
        found.append(match[1])
        position = match.end()
    return found


class _Reader:
    """Recursive descent: one method a rule of the grammar."""

    def __init__(self, tokens: list[str], names: Mapping[str, Fraction | int]) -> None:
        self.tokens, self.names = [*tokens, ""], names
        self.position, self.depth = 0, 0
        self.numbers: list[int] = []

    def whole(self) -> Expression:
        value = self._sum()
        if self._next:
            raise ExpressionError(f"expected an operator, got {self._next!r}")
        return Expression(value=value, numbers=tuple(self.numbers))

    @property
    def _next(self) -> str:
        return self.tokens[self.position]

    def _take(self) -> str:
        self.position += 1
        return self.tokens[self.position - 1]

    def _sum(self) -> Fraction:
        value = self._product()
        while self._next in ("+", "-"):
            sign = self._take()
            term = self._product()
            value = value + term if sign == "+" else value - term
        return value

    def _product(self) -> Fraction:
        value = self._atom()
        while self._next in ("*", "/"):
            sign = self._take()
            factor = self._atom()
            if sign == "/" and factor == 0:
                raise NoValue("division by zero")
            value = value * factor if sign == "*" else value / factor
        return value

    def _atom(self) -> Fraction:
        token = self._next and self._take()
        if token == "(":
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ExpressionError(f"expected at most {MAX_DEPTH} nested parentheses")
            value = self._sum()
            if not self._next or self._take() != ")":
                raise ExpressionError("expected ')'")
            self.depth -= 1
            return value
        if token.isdigit():
            return self._number(token)
        if token.isalpha():
            if token not in self.names:
                raise ExpressionError(f"expected a number, got {token!r}")
            return Fraction(self.names[token])
        raise ExpressionError(f"expected a number or '(', got {token!r}" if token else "expected a number, got the end")

    def _number(self, digits: str) -> Fraction:
        if len(digits) > MAX_DIGITS:
            raise ExpressionError(f"expected numbers of at most {MAX_DIGITS} digits, got {len(digits)}")
        if digits != "0" and digits.startswith("0"):
            raise ExpressionError(f"expected a number without leading zeros, got {digits}")
        self.numbers.append(int(digits))
        return Fraction(int(digits))
