"""Properties of the math verifier: spellings of one number are equal, other numbers are not, nothing is ever raised."""

import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
import sympy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from codriver.verify.math import LIMIT_S, check_math
from codriver.verify.math_exact import exact_value
from codriver.verify.math_symbols import GoldNotReadable, expression, judge, latex_equal
from codriver.verify.math_text import NotReadable

SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)
whole = st.integers(-(10**9), 10**9)
rationals = st.fractions(max_denominator=10**6)


def spellings(value: Fraction) -> list[str]:
    top, bottom = value.numerator, value.denominator
    sign, size = ("-" if value < 0 else ""), abs(value)
    found = [
        rf"\frac{{{top}}}{{{bottom}}}",
        rf"{sign}\dfrac{{{abs(top)}}}{{{bottom}}}",
        f"{top}/{bottom}",
        f"{7 * top}/{7 * bottom}",
        rf"\frac{{{-top}}}{{{-bottom}}}",
        rf"${top} \div {bottom}$",
        f"x = {top}/{bottom}",
        rf"\left({top}\right) / {bottom}",
        rf"{top} \cdot {bottom}^{{-1}}",
    ]
    if size > 1 and bottom > 1:
        found.append(rf"{sign}{int(size)}\frac{{{(size % 1).numerator}}}{{{bottom}}}")
        found.append(f"{sign}{int(size)} {(size % 1).numerator}/{bottom}")
    if bottom == 1:
        found += [str(top), f"{top}.0", f"{top:,}", f"{top:,}".replace(",", "{,}")]
    if 10**6 % bottom == 0:
        places = f"{size.numerator * (10**6 // bottom):07d}"
        found.append(f"{sign}{places[:-6]}.{places[-6:]}")
    return found


@SLOW
@given(rationals)
@example(Fraction(0))
@example(Fraction(-7, 2))
def test_a_rational_number_is_itself_in_every_spelling(value):
    written = spellings(value)
    for gold in (written[0], written[-1]):
        for said in written:
            found = check_math(gold, rf"\boxed{{{said}}}")
            assert found.label == "correct", (gold, said, found.detail)


@SLOW
@given(rationals, rationals)
def test_two_rational_numbers_are_the_same_only_if_they_are(one, other):
    expected = "correct" if one == other else "incorrect"
    for said in spellings(other):
        assert check_math(spellings(one)[0], rf"\boxed{{{said}}}").label == expected


@SLOW
@given(rationals, st.integers(1, 60))
def test_the_smallest_difference_counts(value, places):
    near = value + Fraction(1, 10**places)
    said = rf"\frac{{{near.numerator}}}{{{near.denominator}}}"
    assert check_math(spellings(value)[0], rf"\boxed{{{said}}}").label == "incorrect"


@example("(0/(-1--1))")
@given(st.recursive(whole.map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map("({0[0]}{0[1]}{0[2]})".format), max_leaves=8))  # fmt: skip
@settings(deadline=None)
def test_exact_values_are_those_of_python(text):
    """Python's own reading with `/` of fractions is the slow twin."""
    import re

    try:
        expected = eval(re.sub(r"(\d+)", r"Fraction(\1)", text))
    except ZeroDivisionError:
        try:
            assert exact_value(text) is None and re.search(r"[-+*/]-", text)
        except NotReadable as error:
            assert "divides by zero" in str(error)
        return
    found = exact_value(text)
    # A sign behind an operator (`3+-4`) is left to the symbolic reader.
    assert found == expected or (found is None and re.search(r"[-+]-", text))


PARTS = [
    *"0123456789+-*/^_(){}[]|!<>=.,;:$%&#~'\"` \n",
    *[rf"\{name}" for name in ("frac", "sqrt", "pi", "boxed", "text", "pm", "cup", "left", "right", "{", "}", "\\")],
    *[rf"\{name}" for name in ("begin{pmatrix}", "end{pmatrix}", "sin", "log", "le", "binom", "circ", "%", "$", ",")],
    *("x", "y", "e", "i", "and", "or", "cm", "million", "not", "\u200b", "٣", "²", "½", "√", "π", "°", "±", "≤", "é"),
]


@SLOW
@given(st.lists(st.sampled_from(PARTS), max_size=25).map("".join), st.sampled_from(["5", r"\frac{x}{2}", "(1,2)", "A"]))
def test_garbage_is_never_an_error_and_never_takes_longer_than_the_limit(garbage, gold):
    for text in (rf"\boxed{{{garbage}}}", f"The answer is {garbage}", garbage):
        start = time.monotonic()
        assert check_math(gold, text).label in ("correct", "incorrect", "unparseable")
        assert time.monotonic() - start < LIMIT_S + 8  # another process may have to start


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_any_text_at_all_gets_a_label(text):
    assert check_math("5", rf"\boxed{{{text}}}").label in ("correct", "incorrect", "unparseable")


@SLOW
@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_an_answer_is_equal_to_itself_or_cannot_be_read(text):
    request = {"gold": text, "answer": text, "percent": False, "units": "optional", "tolerance": 0.0}
    try:
        check_math(text, rf"\boxed{{{text}}}")
    except ValueError:
        return  # no reference
    assert judge(request) in ({"right": True},) or "unreadable" in judge(request)


factors = st.recursive(
    st.integers(0, 9).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda t: rf"\frac{{{t[0]}}}{{{t[1]}}}"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "".join(f"({p})" for p in parts)),
        st.tuples(inner, inner).map(lambda t: f"({t[0]}){t[1]}"),
        st.tuples(inner, inner).map(lambda t: f"{{{t[0]}}}({t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]}-{t[1]})"),
        st.tuples(inner, st.integers(2, 3)).map(lambda t: f"({t[0]})^{{{t[1]}}}"),
        inner.map(lambda p: rf"\sqrt{{({p})^{{2}}}}"),
    ),
    max_leaves=6,
)


@SLOW
@given(factors)
@example("(3)(4)")
@example(r"3(\frac{1}{2})")
@example(r"3\frac{1}{2}")
@example(r"\sqrt{9}\frac{1}{2}")
@example(r"2^{3}\frac{1}{2}")
@example("5!(3)")
@example("(2).5")
def test_the_symbolic_reader_agrees_with_the_exact_one(text):
    """Two readers written by different people: products, mixed numbers and powers mean the same to both."""
    try:
        exact = exact_value(text)
        found = expression(text)
    except NotReadable:
        return
    if exact is not None:
        assert sympy.nsimplify(found) == sympy.Rational(exact.numerator, exact.denominator), text


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sin^{2}(x)+\cos^{2}(x)", "1"),
        (r"\log_{2}(8)(x)", "3x"),
        (r"\sum_{k=1}^{3}(k)", "6"),
        (r"\sqrt[3]{8}(4)", "8"),
        (r"2\lfloor 2.5 \rfloor\frac{1}{4}", "1"),
        (r"\ln(e^{2})(3)", "6"),
        (r"2(3)(x)", "6x"),
        (r"\int_{0}^{1}(2x)dx", "1"),
    ],
)
def test_functions_keep_what_belongs_to_them(a, b):
    assert latex_equal(a, b) and not latex_equal(a, b + "+1")


COMMON = [
    "x",
    "x+1",
    "2x",
    "x^2",
    r"\sqrt{x}",
    r"\sin(x)",
    r"\frac{1}{x}",
    "e^{x}",
    "xy",
    r"\pi",
    "3",
    r"\sqrt{2}",
    "i",
]


@SLOW
@given(st.sampled_from(COMMON), st.sampled_from(COMMON), st.sampled_from(COMMON))
def test_equality_of_expressions_follows_algebra(a, b, c):
    assert latex_equal(f"({a})+({b})", f"({b})+({a})")
    assert latex_equal(f"({a})({b}+{c})", f"({a})({b})+({a})({c})")
    assert not latex_equal(f"({a})+({b})", f"({a})+({b})+10^{{-9}}")


def test_symbols_that_the_reader_would_drop_are_refused():
    for text in ("x'", "x;y", r"\foo x", "x & y", "x @ y", "5\\%"):
        with pytest.raises(NotReadable):
            latex_equal("x", text)
    with pytest.raises(GoldNotReadable):
        latex_equal("x'", "x")


def test_threads_can_check_at_the_same_time():
    cases = [(rf"\sqrt{{{n}}}+1", rf"\boxed{{1+\sqrt{{{n + n % 2}}}}}", n % 2 == 0) for n in range(2, 60)]
    with ThreadPoolExecutor(8) as threads:
        labels = list(threads.map(lambda case: check_math(case[0], case[1]).label, cases))
    for (gold, text, is_right), label in zip(cases, labels, strict=True):
        assert (label == "correct") == is_right, (gold, text)
