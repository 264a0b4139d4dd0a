r"""Symbolic equality, with sympy and math-verify's LaTeX reader. Runs in the worker processes of `workers`, never here.

Why not math-verify's own comparison: it rounds to 6 decimals or 15 digits (1/2004! would be 1/2006!, 3.14159265 would
be pi), joins several boxes into a set and lets (1,2) be {1,2}. Here decimals become fractions before they are read, and
two expressions are equal when their difference is zero: by algebra, or to 300 digits at every point that is tried.
"""

import random
import re
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from sympy.core.evalf import PrecisionExhausted

from codriver.verify.math_equal import Rules, same
from codriver.verify.math_form import Form, read
from codriver.verify.math_products import explicit_products
from codriver.verify.math_text import NotReadable

DIGITS = 300
"""Differences are followed to this many digits before they are taken for zero."""
NOTHING = sympy.Float("1e-150")
"""Relative size below which what is left of a difference after that is noise."""
POINTS, MIN_POINTS = 10, 3
"""Places where expressions with unknowns are compared, and how many of them must be defined."""
KEEP_CASE = ConversionConfig(lowercase_symbols=False)
DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)|(?<![\d.])(\d+)\.(?!\d)", re.ASCII)
ALLOWED = re.compile(r"[A-Za-z0-9+\-*/^_(){}\[\]|!<>=., \\]*", re.ASCII)
"""The LaTeX reader drops some characters that it does not know, such as the prime of x'."""
COMMANDS = set(
    "frac sqrt cdot times div ast pi infty binom sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log "
    "ln exp lg gcd lcm max min det lfloor rfloor lceil rceil sum prod int alpha beta gamma delta epsilon "
    "varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi varphi chi psi omega Gamma "
    "Delta Theta Lambda Xi Sigma Phi Psi Omega to text overline bar hat".split()
)


class GoldNotReadable(ValueError):
    """The reference is no mathematics that can be read: it can only be compared as text."""


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """One comparison of two answers: `right`, or why one of them cannot be read."""
    if request.get("probe"):
        return _probe(request["gold"])
    rules = Rules(percent=request["percent"], units=request["units"], tolerance=request["tolerance"])
    try:
        is_right = same(
            read(request["gold"]),
            read(request["answer"]),
            rules,
            lambda gold, answer: latex_equal(gold, answer, tolerance=rules.tolerance),
        )
    except GoldNotReadable as error:
        return {"gold_unreadable": str(error)}
    except NotReadable as error:
        return {"unreadable": str(error)}
    return {"right": is_right}


def latex_equal(gold: str, answer: str, *, tolerance: float = 0.0) -> bool:
    """Equality of two expressions, or of two equations. Raises NotReadable, GoldNotReadable."""
    if "=" in gold and "=" in answer:
        return _same_equation(_equation(gold), _equation(answer))
    said = expression(answer)
    try:
        meant = expression(gold)
    except NotReadable as error:
        raise GoldNotReadable(str(error)) from error
    return expressions_equal(meant, said, tolerance=tolerance)


def expression(latex: str) -> sympy.Expr:
    """One expression without floats. Raises NotReadable."""
    unknown = [name for name in re.findall(r"\\([A-Za-z]+)", latex) if name not in COMMANDS]
    if unknown or not ALLOWED.fullmatch(latex):
        raise NotReadable(f"cannot read {(unknown or [latex])[0][:40]!r} as mathematics")
    try:
        found = latex2sympy(
            explicit_products(DECIMAL.sub(_as_fraction, latex)),
            is_real=True,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=KEEP_CASE,
        )
        # Names inside: `i` is the imaginary unit, `I` a letter, as people write them.
        letters = {sympy.Symbol("i", real=True): sympy.I, sympy.I: sympy.Symbol("I", real=True)}
        found = found.subs(letters, simultaneous=True).doit()
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the reader raises plain Exceptions, and sympy nearly anything
        raise NotReadable(f"cannot read {latex[:40]!r} as mathematics ({type(error).__name__})") from error
    if not isinstance(found, sympy.Expr) or found.has(sympy.Float) or found.has(sympy.nan, sympy.zoo):
        raise NotReadable(f"{latex[:40]!r} is no expression with a value")
    return found


def expressions_equal(gold: sympy.Expr, answer: sympy.Expr, *, tolerance: float = 0.0) -> bool:
    """
    >>> x = sympy.Symbol("x", real=True)
    >>> expressions_equal((x + 1) ** 2, x**2 + 2 * x + 1), expressions_equal(sympy.sqrt(x**2), x)
    (True, False)
    """
    if gold == answer:
        return True
    if gold.has(sympy.oo, -sympy.oo) or answer.has(sympy.oo, -sympy.oo):
        return False
    difference = gold - answer
    unknowns = sorted(difference.free_symbols, key=str)
    if not unknowns:
        return _is_zero(difference) or bool(tolerance and _is_within(gold, difference, tolerance))
    return _zero_at_points(gold, answer, unknowns)


def _as_fraction(match: re.Match[str]) -> str:
    whole, places = (match[3], "") if match[3] else (match[1], match[2])
    value = Fraction(int(whole + places or 0), 10 ** len(places))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _is_zero(number: sympy.Expr) -> bool:
    """Whether an expression without unknowns is zero: exactly, or as far as `DIGITS` digits can tell."""
    if number.is_Rational:
        return bool(number == 0)
    try:
        return bool(sympy.N(number, 5, maxn=DIGITS, strict=True) == 0)
    except PrecisionExhausted:
        left = sympy.Abs(sympy.N(number, 5, maxn=DIGITS))
        terms = [sympy.Abs(sympy.N(term, 5)) for term in sympy.Add.make_args(number)]
        return bool(left <= NOTHING * max(terms))


def _is_within(gold: sympy.Expr, difference: sympy.Expr, tolerance: float) -> bool:
    return bool(sympy.Abs(sympy.N(difference, 30)) <= sympy.Float(tolerance) * sympy.Abs(sympy.N(gold, 30)))


def _zero_at_points(gold: sympy.Expr, answer: sympy.Expr, unknowns: list[sympy.Symbol]) -> bool:
    """Equal wherever both are real, or wherever both are defined if either is about complex numbers."""
    draw = random.Random(0)
    is_complex = gold.has(sympy.I) or answer.has(sympy.I)
    tried = skipped = 0
    for number in range(2 * POINTS):
        # The first half are positive: where both sides are defined there only, that is enough.
        signs = [1 if number < POINTS // 2 else draw.choice((-1, 1)) for _ in unknowns]
        point = {u: sign * sympy.Rational(draw.randint(101, 997), 211) for u, sign in zip(unknowns, signs, strict=True)}
        sides = [side.subs(point) for side in (gold, answer)]
        values = [sympy.N(side, 15) for side in sides]
        if any(not v.is_number or v.has(sympy.nan, sympy.zoo, sympy.oo) for v in values):
            skipped += 1
            continue
        if not is_complex and any(sympy.im(v) != 0 for v in values):
            skipped += 1
            continue
        if not _is_zero(sides[0] - sides[1]):
            return False
        tried += 1
        if tried == POINTS:
            break
    if tried < MIN_POINTS:
        return bool(sympy.simplify(gold - answer) == 0)
    return True


def _equation(text: str) -> sympy.Expr:
    left, _, right = text.partition("=")
    return expression(left) - expression(right)


def _same_equation(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """`y = 2x + 1` and `4x - 2y + 2 = 0`: one is a constant, not zero, times the other."""
    unknowns = sorted(gold.free_symbols, key=str)
    if not unknowns or gold.free_symbols != answer.free_symbols:
        return False
    point = {u: sympy.Rational(prime, 7) for u, prime in zip(unknowns, sympy.primerange(11, 999), strict=False)}
    at_gold, at_answer = gold.subs(point), answer.subs(point)
    if _is_zero(at_answer) or _is_zero(at_gold):
        return False
    return _zero_at_points(gold * at_answer, answer * at_gold, unknowns)


def _probe(gold: str) -> dict[str, Any]:
    """Whether the reference alone can be worked with: who is to blame when a comparison came to nothing."""
    for leaf in _leaves(read(gold)):
        try:
            value = expression(leaf.text)
            sympy.N(value.subs({u: sympy.Rational(17, 7) for u in value.free_symbols}), 15)
        except NotReadable:
            continue
    return {"right": True}


def _leaves(form: Form) -> list[Form]:
    if form.items:
        return [leaf for item in form.items for leaf in _leaves(item)]
    return [form] if form.kind == "symbols" else []
