"""Whether two answers are the same: structure first, then exact numbers, then symbols by whoever is asked for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from codriver.verify.math_form import Form, is_name
from codriver.verify.math_text import NotReadable

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
MAX_ITEMS = 64
"""Items of a list or set that are matched with each other, in any order."""

SymbolsEqual = Callable[[str, str], bool]
"""Whether two LaTeX expressions (gold, answer) are equal. `a=b` on both sides asks about two equations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What counts as the same."""

    percent: bool = False
    """A number with a percent sign is also right without it, and the other way round. Off: 50% is 1/2, not 50."""
    units: Literal["optional", "exact"] = "optional"
    """optional: a unit may be missing on one side, but never differ. exact: both have it, or neither."""
    tolerance: float = 0.0
    """Largest relative error, where the gold or the answer is not a whole number. 0: exact."""


def same(gold: Form, answer: Form, rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    """Whether the answer is the gold. Raises NotReadable: the answer is not one that can be compared."""
    if gold == answer:
        return True
    if "relation" in (gold.kind, answer.kind):
        return _same_relation(gold, answer, rules, symbols_equal)
    gold, answer = _opened(gold, answer)
    if gold.items or answer.items or gold.kind == "set" or answer.kind == "set":
        return _same_items(gold, answer, rules, symbols_equal)
    if "words" in (gold.kind, answer.kind):
        if gold.kind != "words":
            raise NotReadable(f"the answer is words ({answer.text[:40]!r}), the reference is mathematics")
        return _first_letters_small(gold.text) == _first_letters_small(answer.text or "")
    return _same_leaf(gold, answer, rules, symbols_equal)


def _opened(gold: Form, answer: Form) -> tuple[Form, Form]:
    """A set of one is its element, as solution sets are written."""
    one = [f.items[0] if f.kind == "set" and len(f.items) == 1 else f for f in (gold, answer)]
    return one[0], one[1]


def _same_items(gold: Form, answer: Form, rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    free = ("list", "set")
    if gold.kind != answer.kind and not (gold.kind in free and answer.kind in free):
        return False
    if len(gold.items) != len(answer.items):
        return False
    if gold.kind in free or gold.kind == "union":
        return _same_in_any_order(gold.items, answer.items, rules, symbols_equal)
    return all(same(g, a, rules, symbols_equal) for g, a in zip(gold.items, answer.items, strict=True))


def _same_in_any_order(gold: Sequence[Form], answer: Sequence[Form], rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    """Equality is transitive, so the first free partner is as good as any."""
    if len(gold) > MAX_ITEMS:
        raise NotReadable(f"the answer lists {len(gold)} items, at most {MAX_ITEMS} are compared")
    left, unmatched = list(answer), []
    for item in gold:  # identical ones first: no symbols are needed for them
        if item in left:
            left.remove(item)
        else:
            unmatched.append(item)
    for item in unmatched:
        partner = next((n for n, other in enumerate(left) if same(item, other, rules, symbols_equal)), None)
        if partner is None:
            return False
        left.pop(partner)
    return not left


def _same_relation(gold: Form, answer: Form, rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    if gold.kind == answer.kind:
        return _same_relations(gold, answer, rules, symbols_equal)
    if gold.kind == "relation":
        if gold.text != "=" or not _is_named(gold):
            return False
        return same(gold.items[-1], answer, rules, symbols_equal)
    if set(answer.text.split(",")) != {"="}:
        return False
    sides = answer.items[1:] if _is_named(answer) else answer.items
    return all(same(gold, side, rules, symbols_equal) for side in sides)


def _same_relations(gold: Form, answer: Form, rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    signs, said = gold.text.split(","), answer.text.split(",")
    if len(signs) != len(said):
        return False
    turned = Form(
        kind="relation",
        text=",".join(FLIPPED[sign] for sign in reversed(said)),
        items=tuple(reversed(answer.items)),
    )
    pairs = [a for a in (answer, turned) if a.text == gold.text]
    for version in pairs:
        if all(_same_side(g, a, rules, symbols_equal) for g, a in zip(gold.items, version.items, strict=True)):
            return True
    if gold.text != "=" or answer.text != "=" or (_is_single(gold) and _is_single(answer)):
        return False
    equations = [_equation(form) for form in (gold, answer)]
    return all(equations) and symbols_equal(equations[0], equations[1])


def _same_side(gold: Form, answer: Form, rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    return gold.kind != "relation" and answer.kind != "relation" and same(gold, answer, rules, symbols_equal)


def _is_named(relation: Form) -> bool:
    first = relation.items[0]
    return first.kind == "words" or (first.kind == "symbols" and is_name(first.text))


def _is_single(relation: Form) -> bool:
    """`x = 5`: says what one letter is, so that it is no equation to be rearranged."""
    return _is_named(relation) and relation.items[-1].kind == "number"


def _equation(relation: Form) -> str:
    """Both sides as LaTeX, or nothing where a side is no expression."""
    if any(side.kind not in ("number", "symbols") or side.unit for side in relation.items):
        return ""
    return "=".join(latex(side) for side in relation.items)


def latex(leaf: Form) -> str:
    """LaTeX of a leaf, exact numbers as fractions."""
    if leaf.value is None:
        return leaf.text
    return rf"\frac{{{leaf.value.numerator}}}{{{leaf.value.denominator}}}"


def _same_leaf(gold: Form, answer: Form, rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    if "based" in (gold.kind, answer.kind):
        return False  # 101_2 is only 101_2
    if not _units_agree(gold, answer, rules):
        return False
    if _values_agree(gold, answer, rules, symbols_equal):
        return True
    if rules.percent and gold.has_percent != answer.has_percent:
        scaled = [_without_percent(form) for form in (gold, answer)]
        return _values_agree(scaled[0], scaled[1], rules, symbols_equal)
    return False


def _without_percent(form: Form) -> Form:
    if not form.has_percent:
        return form
    if form.value is not None:
        return Form(kind="number", value=form.value * 100)
    return Form(kind="symbols", text=rf"100({form.text})")


def _units_agree(gold: Form, answer: Form, rules: Rules) -> bool:
    if gold.unit == answer.unit:
        return True
    if gold.unit and answer.unit:
        return False
    if not gold.unit and not answer.is_known_unit:
        raise NotReadable(f"{answer.unit[:40]!r} behind the answer is no unit that is known")
    if rules.units == "exact":
        return False
    return gold.is_loose_unit if gold.unit else True


def _values_agree(gold: Form, answer: Form, rules: Rules, symbols_equal: SymbolsEqual) -> bool:
    if gold.value is not None and answer.value is not None:
        return numbers_agree(gold.value, answer.value, rules.tolerance)
    if gold.text and gold.text == answer.text:
        return True
    letters = [form.text for form in (gold, answer) if form.value is None]
    if all(len(text) == 1 and text.isalpha() and text not in "ei" for text in letters):
        return False  # a choice or a variable: A is not a, and neither is 5
    return symbols_equal(latex(gold), latex(answer))


def numbers_agree(gold: Fraction, answer: Fraction, tolerance: float) -> bool:
    """Exact, or within a relative tolerance of a gold; whole numbers are always exact."""
    if gold == answer:
        return True
    if not tolerance or (gold.denominator == 1 and answer.denominator == 1):
        return False
    return abs(gold - answer) <= Fraction(tolerance) * abs(gold)


def _first_letters_small(text: str) -> str:
    """`Even` is `even`, but ABC is not abc."""
    return " ".join(word[:1].lower() + word[1:] for word in text.split())
