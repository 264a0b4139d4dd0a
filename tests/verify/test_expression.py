"""Written expressions: exact values, and refusal of everything else. Nothing hangs, nothing is run."""

import ast
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codriver.verify.expression import MAX_DEPTH, MAX_LENGTH, ExpressionError, NoValue, read_expression


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("7", 7, (7,)),
        ("0", 0, (0,)),
        ("2+3*4", 14, (2, 3, 4)),
        ("(2+3)*4", 20, (2, 3, 4)),
        ("10-3-2", 5, (10, 3, 2)),
        ("10-(3-2)", 9, (10, 3, 2)),
        ("24/4/3", 2, (24, 4, 3)),
        ("24/(4/3)", 18, (24, 4, 3)),
        ("1/3+1/6", Fraction(1, 2), (1, 3, 1, 6)),
        ("3-5", -2, (3, 5)),
        ("8/(3-8/3)", 24, (8, 3, 8, 3)),
        (" ( 3 + 5 ) * 7 ", 56, (3, 5, 7)),
        ("3 × 5 − 4 ÷ 2", 13, (3, 5, 4, 2)),
        ("3·5", 15, (3, 5)),
        ("((((7))))", 7, (7,)),
        ("3\n+\t5", 8, (3, 5)),
        ("999999999*999999999", 999999998000000001, (999999999, 999999999)),
    ],
)
def test_values_are_exact_and_numbers_are_told_in_order(text, value, numbers):
    found = read_expression(text)
    assert (found.value, found.numbers) == (value, numbers)


def test_names_stand_for_their_values_and_are_no_numbers():
    found = read_expression("a+4*b", {"a": 3, "b": Fraction(1, 2)})
    assert (found.value, found.numbers) == (5, (4,))


REFUSED = [
    ("", "got the end"),
    ("   ", "got the end"),
    ("3+", "got the end"),
    ("+3", "expected a number or '\\(', got '\\+'"),
    ("-3", "got '-'"),
    ("5*-3", "got '-'"),
    ("5--3", "got '-'"),
    ("2**3", "got '\\*'"),
    ("9**9**9**9", "got '\\*'"),
    ("7//2", "got '/'"),
    ("2^3", "got '\\^'"),
    ("1 2", "expected an operator, got '2'"),
    ("1 2+3", "expected an operator, got '2'"),
    ("1\n2", "expected an operator, got '2'"),
    ("2(3)", "expected an operator, got '\\('"),
    ("(2)3", "expected an operator, got '3'"),
    ("(2)(3)", "expected an operator, got '\\('"),
    ("(3", "expected '\\)'"),
    ("3)", "expected an operator, got '\\)'"),
    ("()", "got '\\)'"),
    ("(3+)5", "got '\\)'"),
    (")3(", "got '\\)'"),
    ("1.5", "got '\\.'"),
    (".5", "got '\\.'"),
    ("1e3", "expected an operator, got 'e'"),
    ("1_000", "got '_'"),
    ("1,000", "got ','"),
    ("0x10", "expected an operator, got 'x'"),
    ("007", "without leading zeros, got 007"),
    ("00", "without leading zeros"),
    ("5%3", "got '%'"),
    ("5!", "got '!'"),
    ("3=3", "got '='"),
    ("3+4=7", "got '='"),
    ("3<4", "got '<'"),
    ("3&1", "got '&'"),
    ("~3", "got '~'"),
    ("1<<9", "got '<'"),
    ("٣+٤", "got '٣'"),
    ("３", "got '３'"),
    ("²", "got '²'"),
    ("3²", "got '²'"),
    ("½", "got '½'"),
    ("3\u200b5", "got '\\\\u200b'"),
    ("\u202e3", "got '\\\\u202e'"),
    ("3\x00", "got '\\\\x00'"),
    ("x", "expected a number, got 'x'"),
    ("sqrt(4)", "got 'sqrt'"),
    ("__import__('os')", "got '_'"),
    ("abs(3)", "got 'abs'"),
    ("a", "got 'a'"),
    ("[3]", "got '\\['"),
    ("{3}", "got '\\{'"),
    ("'3'", 'got "\'"'),
    ("3;4", "got ';'"),
    ("3 or 4", "expected an operator, got 'or'"),
    ("3 # 4", "got '#'"),
    ("\\frac12", "got '\\\\\\\\'"),
    ("$3$", "got '\\$'"),
    ("1" + "0" * 9, "at most 9 digits, got 10"),
    ("9" * 300, "at most 9 digits, got 300"),
    ("1+" * 300 + "1", "at most 400 characters, got 601"),
    ("9" * 10**6, "at most 400 characters"),
    ("(" * 31 + "1" + ")" * 31, "at most 30 nested"),
    ("(" * 400, "at most 30 nested"),
    ("True", "got 'True'"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_not_in_the_grammar_is_refused_with_its_place(text, message):
    with pytest.raises(ExpressionError, match=message) as caught:
        read_expression(text)
    assert caught.type is ExpressionError


@pytest.mark.parametrize("text", ["1/0", "1/(3-3)", "0/0", "5/(2*3-6)", "(1/0)*0"])
def test_division_by_zero_has_no_value(text):
    with pytest.raises(NoValue, match="division by zero"):
        read_expression(text)


def test_the_largest_text_that_is_read_is_read_at_once():
    widest = "/".join(["999999999"] * (MAX_LENGTH // 10))
    deepest = "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH
    start = time.perf_counter()
    assert read_expression(widest).value == Fraction(999999999) ** (2 - MAX_LENGTH // 10)
    assert read_expression(deepest).value == 1
    assert time.perf_counter() - start < 0.1


def by_python(text):
    """The slow twin: Python's own tree of the text, with exact fractions."""

    def value(node):
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        left, right = value(node.left), value(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right

    return value(ast.parse(text, mode="eval").body)


expressions = st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map("".join),
        inner.map("({})".format),
    ),
    max_leaves=12,
)


@given(expressions)
def test_the_value_is_that_of_pythons_own_reading(text):
    try:
        expected = by_python(text)
    except ZeroDivisionError:
        with pytest.raises(NoValue):
            read_expression(text)
    else:
        assert read_expression(text).value == expected


@given(st.text(alphabet="0123456789+-*/() .^=ab", max_size=30) | st.text(max_size=60))
def test_any_text_is_read_or_refused_and_nothing_else_is_raised(text):
    try:
        read_expression(text)
    except ExpressionError:
        pass
