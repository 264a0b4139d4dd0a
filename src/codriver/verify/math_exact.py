r"""Exact values of plain numeric expressions: fractions, roots that come out, powers, factorials. No sympy.

It also reads past letters and commands it does not know, so that a power tower inside a symbolic answer is refused
here, in microseconds, and not after two seconds in a worker.
"""

import math
import re
from fractions import Fraction

from codriver.verify.math_text import NotReadable

MAX_BITS = 100_000
"""Size of any numerator or denominator on the way: 2004! (19,000 bits) fits, 9^9^9 does not."""
MAX_SYMBOL_POWER = 10_000
"""Largest whole exponent over something that is not a number."""
TOKEN = re.compile(r"\s*(\d+\.\d*|\.\d+|\d+|\\[A-Za-z]+|[A-Za-z]|[-+*/^!(){}\[\]_])", re.ASCII)
MIXED = re.compile(r"([-+]?)\s*(\d+)(?:\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\s+(\d+)\s*/\s*(\d+))", re.ASCII)
SCIENTIFIC = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|1|\d+(?=E))[eE][-+]?\d{1,6}", re.ASCII)
"""`1e-9`, `2.5e3`, `2E3`. Not `2e-3`, which is two times Euler's number less three."""
REPEATING = re.compile(r"([-+]?)(\d*)\.(\d*)\\overline\{(\d+)\}", re.ASCII)
TIMES, OVER = ("*", r"\cdot", r"\times", r"\ast"), ("/", r"\div")
STARTS = ("(", "{")
NOT_A_FACTOR = ("+", "-", "^", "!", ")", "]", "}", "_", "[")

Value = Fraction | None
"""None: not a rational number, or not one that is known here."""


class _NotKnown(Exception):
    """Syntax of which this reader knows nothing."""


def exact_value(text: str) -> Value:
    r"""The rational value of an expression, or None where it has none that this reader can see.

    Raises NotReadable: a number on the way is too large, or something is divided by zero.

    >>> exact_value(r"3\frac{1}{2}"), exact_value("2^{-3}"), exact_value(r"\sqrt{2}")
    (Fraction(7, 2), Fraction(1, 8), None)
    """
    if match := MIXED.fullmatch(text):
        whole, top, bottom = int(match[2]), int(match[3] or match[5]), int(match[4] or match[6])
        if bottom == 0:
            raise NotReadable("the answer divides by zero")
        return _sign(match[1]) * (whole + Fraction(top, bottom))
    if match := REPEATING.fullmatch(text):
        places, block = len(match[3]), len(match[4])
        head = Fraction(int((match[2] + match[3]) or 0), 10**places)
        return _sign(match[1]) * (head + Fraction(int(match[4]), 10**places * (10**block - 1)))
    if SCIENTIFIC.fullmatch(text):
        if abs(int(re.split("[eE]", text)[1])) > MAX_BITS // 4:
            raise NotReadable("a number in the answer is too large to work with")
        return Fraction(text)
    try:
        return _Reader(text).whole()
    except _NotKnown:
        return None


class _Reader:
    """Recursive descent over one expression; nesting has been bounded by `refuse_unreadable`."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            match = TOKEN.match(text, position)
            if not match:
                raise _NotKnown
            self.tokens.append(match[1])
            position = match.end()
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.next
        if not token or (expected and token != expected):
            raise _NotKnown
        self.at += 1
        return token

    def whole(self) -> Value:
        value = self.sum()
        if self.next:
            raise _NotKnown
        return value

    def sum(self) -> Value:
        negative = self.next == "-"
        if self.next in ("+", "-"):
            self.take()
        value = self.product()
        if negative and value is not None:
            value = -value
        while self.next in ("+", "-"):
            is_minus = self.take() == "-"
            term = self.product()
            value = None if value is None or term is None else _bounded(value - term if is_minus else value + term)
        return value

    def product(self) -> Value:
        value = self.power()
        while self.next and self.next not in ("+", "-", ")", "]", "}"):
            is_over = self.next in OVER
            if is_over or self.next in TIMES:
                self.take()
            elif self.next[0].isdigit() or self.next[0] == ".":
                raise _NotKnown  # two numbers side by side: 5 5 is no product
            factor = self._signed_power()
            if is_over:
                value = _quotient(value, factor)
            else:
                value = None if value is None or factor is None else _bounded(value * factor)
        return value

    def _signed_power(self) -> Value:
        if self.next == "-":
            self.take()
            value = self.power()
            return None if value is None else -value
        return self.power()

    def power(self) -> Value:
        base = self.atom()
        while self.next == "!":
            self.take()
            base = _factorial(base)
        if self.next == "_":
            self.take()
            self.atom()
            base = None
        if self.next != "^":
            return base
        self.take()
        if self.next == "-":
            self.take()
            exponent = self.power()
            exponent = None if exponent is None else -exponent
        else:
            exponent = self.power()
        return _power(base, exponent)

    def atom(self) -> Value:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            value = Fraction(token)
            if self.next == r"\frac" and value.denominator == 1 and "." not in token:
                part, is_plain = self._fraction()
                return value + part if is_plain and part is not None else None if part is None else value * part
            return value
        if token in STARTS:
            value_inside = self.sum()
            self.take({"(": ")", "{": "}"}[token])
            return value_inside
        if token == r"\frac":
            self.at -= 1
            return self._fraction()[0]
        if token in (r"\sqrt", r"\binom"):
            return self._root() if token == r"\sqrt" else self._binomial()
        if token in NOT_A_FACTOR or token in TIMES or token in OVER:
            raise _NotKnown
        return None  # a letter or a command: not a number, but what stands around it is still looked at

    def _fraction(self) -> tuple[Value, bool]:
        r"""Value of `\frac{a}{b}`, and whether both are written as plain whole numbers: `3\frac{1}{2}` is 3.5."""
        self.take(r"\frac")
        start = self.at
        top, bottom = self._argument(), self._argument()
        words = [t for t in self.tokens[start : self.at] if t not in "{}"]
        return _quotient(top, bottom), len(words) == 2 and all(w.isdigit() for w in words)

    def _argument(self) -> Value:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value

    def _root(self) -> Value:
        degree: Value = Fraction(2)
        if self.next == "[":
            self.take()
            degree = self.sum()
            self.take("]")
        return _power(self._argument(), _quotient(Fraction(1), degree))

    def _binomial(self) -> Value:
        n, k = self._argument(), self._argument()
        if n is None or k is None or n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n:
            return None
        small = min(k.numerator, n.numerator - k.numerator)
        if small * max(n.numerator.bit_length(), 1) > MAX_BITS:
            raise NotReadable("a binomial in the answer is too large to work with")
        return Fraction(math.comb(n.numerator, small))


def _sign(text: str) -> int:
    return -1 if text == "-" else 1


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise NotReadable("a number in the answer is too large to work with")
    return value


def _quotient(top: Value, bottom: Value) -> Value:
    if bottom == 0:
        raise NotReadable("the answer divides by zero")
    return None if top is None or bottom is None else _bounded(top / bottom)


def _factorial(value: Value) -> Value:
    if value is None or value.denominator != 1 or value < 0:
        return None
    n = value.numerator
    if n * n.bit_length() > MAX_BITS:
        raise NotReadable("a factorial in the answer is too large to work with")
    return Fraction(math.factorial(n))


def _power(base: Value, exponent: Value) -> Value:
    if exponent is None:
        return None
    if base is None:
        if abs(exponent) > MAX_SYMBOL_POWER:
            raise NotReadable("a power in the answer is too large to work with")
        return None
    if base == 0 and exponent <= 0:
        raise NotReadable("the answer divides by zero" if exponent else "the answer has 0^0")
    if base in (0, 1):
        return base
    if base == -1 and exponent.denominator == 1:
        return base if exponent.numerator % 2 else Fraction(1)
    if abs(exponent) * _bits(base) > MAX_BITS:
        raise NotReadable("a power in the answer is too large to work with")
    if exponent.denominator == 1:
        return base**exponent.numerator
    return _root_power(base, exponent)


def _root_power(base: Fraction, exponent: Fraction) -> Value:
    """base^(p/q) where it is rational. A negative base is left to sympy: its principal root is not real."""
    degree = exponent.denominator
    if base < 0 or degree > 64:
        return None
    top, bottom = _whole_root(base.numerator, degree), _whole_root(base.denominator, degree)
    if top is None or bottom is None:
        return None
    return Fraction(top, bottom) ** exponent.numerator


def _whole_root(number: int, degree: int) -> int | None:
    if number < 2:
        return number
    low, high = 1, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= number:
            low = middle
        else:
            high = middle - 1
    return low if low**degree == number else None
