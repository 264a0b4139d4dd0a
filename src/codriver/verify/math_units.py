r"""What stands around a number: units, currencies, degrees, percent signs, words like `million`.

A unit is known when it is in the table; other words behind a number are kept as they are, and are the same only as
themselves. Nothing is converted: 100 cm is not 1 m.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

UNITS = {
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "unit": "unit units",
    "square unit": "square_unit square_units sq_units",
    "cubic unit": "cubic_unit cubic_units cu_units",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "pound": "lb lbs pound pounds",
    "ounce": "oz ounce ounces",
    "ton": "ton tons tonne tonnes",
    "ml": "ml mL milliliter milliliters millilitre millilitres",
    "l": "l L liter liters litre litres",
    "gallon": "gal gallon gallons",
    "cup": "cup cups",
    "s": "s sec secs second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "dollar": "dollar dollars usd USD",
    "cent": "cent cents",
    "euro": "euro euros EUR",
    "pound sterling": "GBP",
    "yen": "yen JPY",
    "degree": "degree degrees deg",
    "radian": "rad radian radians",
    "km/h": "km/h kmh kph",
    "mile/hour": "mph mile/h miles/hour",
    "m/s": "m/s",
    "newton": "N newton newtons",
    "joule": "J joule joules",
    "watt": "W watt watts",
    "volt": "V volt volts",
    "hertz": "Hz hertz",
    "kelvin": "K kelvin",
}
KNOWN = {spelling.replace("_", " "): unit for unit, line in UNITS.items() for spelling in line.split()}
CURRENCY = {"$": "dollar", r"\$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen"}
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt pi max min gcd lcm det binom "
    "alpha beta gamma delta theta lambda mu phi omega sigma infty infinity mod"
).split()
"""Words that are mathematics, never a unit or prose."""

WRAP = r"\\(?:text|mathrm|textrm|mbox|textbf|mathbf|textit|operatorname)\s*\{\s*([A-Za-z][A-Za-z .]*?)\.?\s*\}"
POWER = r"(?:\^\{?([23])\}?)?"
WRAPPED = re.compile(rf"(.*?\S)\s*{WRAP}{POWER}(?:/{WRAP}{POWER})?", re.DOTALL)
BARE = re.compile(rf"(.*[\d)}}\]!])(\s*)([A-Za-z][A-Za-z]+(?: [A-Za-z]+){{0,3}}|[A-Za-z]+/[A-Za-z]+){POWER}", re.DOTALL)
DEGREE = re.compile(r"(.*\S)\s*(?:\^\s*\{?\s*\\circ\s*\}?|°|\\degree)", re.DOTALL)
PERCENT = re.compile(r"(.*?\S)\s*(?:\\?%|(?:\\text\{\s*)?(?<![A-Za-z])(?:percent|per cent)\s*\}?)", re.DOTALL)
TRIGONOMETRY = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)")
ATTACHED = ("mm", "cm", "km", "kg", "mg")
"""Two letters that are a unit without a space before them; `2ml` may be a product."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A number's text and what stood around it."""

    text: str
    unit: str = ""
    is_known: bool = True
    """The unit is in the table."""
    is_loose: bool = True
    """The unit may be left out: it cannot be a variable. False: two or fewer bare letters."""
    factor: Fraction = Fraction(1)
    """From `million`, `dozen`, `%`."""
    has_percent: bool = False


def measured(text: str) -> Measured:
    r"""Takes the unit off an answer.

    >>> measured(r"5\text{ cm}^2").unit, measured("3 million dollars").factor, measured("2x").unit
    ('cm^2', Fraction(1000000, 1), '')
    """
    for sign, unit in CURRENCY.items():
        body = text.removeprefix("-")
        if body.startswith(sign) and body != sign:
            rest = measured(text.replace(sign, "", 1).strip())
            if rest.unit in ("", unit):
                return Measured(text=rest.text, unit=unit, factor=rest.factor, has_percent=rest.has_percent)
        elif text.endswith(sign) and text != sign and sign in "€£¥":
            return Measured(text=text.removesuffix(sign).strip(), unit=unit)
    if match := PERCENT.fullmatch(text):
        return Measured(text=match[1], factor=Fraction(1, 100), has_percent=True)
    if (match := DEGREE.fullmatch(text)) and not TRIGONOMETRY.search(match[1]):
        return Measured(text=match[1], unit="degree")
    if match := WRAPPED.fullmatch(text):
        words, power, below, below_power = match[2], match[3], match[4], match[5]
        unit = _spelled(words, power) + (f"/{_spelled(below, below_power)}" if below else "")
        return _with_unit(match[1], words, unit, is_loose=True)
    if match := BARE.fullmatch(text):
        space, words, power = match[2], match[3], match[4]
        if _is_bare_unit(words, has_space=bool(space)):
            return _with_unit(match[1], words, _spelled(words, power), is_loose=len(words) > 2)
    return Measured(text=text)


def _is_bare_unit(words: str, *, has_space: bool) -> bool:
    if any(word in FUNCTIONS for word in words.split()):
        return False
    if len(words) <= 2:
        return words in ATTACHED or (has_space and words in KNOWN)
    return has_space or words in KNOWN


def _spelled(words: str, power: str | None) -> str:
    """One spelling of a unit: `square centimeters` is `cm^2`."""
    plain = " ".join(words.replace(".", " ").split())
    for word, exponent in (("square ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu ", "3")):
        rest = plain.removeprefix(word)
        if rest != plain and rest in KNOWN and "unit" not in rest and power is None:
            plain, power = rest, exponent
    unit = KNOWN.get(plain, plain)
    if "/" in plain and plain not in KNOWN:
        unit = "/".join(KNOWN.get(part, part) for part in plain.split("/"))
    return unit + (f"^{power}" if power else "")


def _with_unit(text: str, words: str, unit: str, *, is_loose: bool) -> Measured:
    """`million` is a factor; `million dollars` is a factor and a unit."""
    first, _, rest = words.partition(" ")
    if first in SCALES:
        rest = rest.removeprefix("of ").strip()
        return Measured(
            text=text,
            unit=_spelled(rest, None) if rest else "",
            is_known=not rest or _is_known(_spelled(rest, None)),
            factor=Fraction(SCALES[first]),
        )
    return Measured(text=text, unit=unit, is_known=_is_known(unit), is_loose=is_loose)


def _is_known(unit: str) -> bool:
    return all(part.split("^")[0] in UNITS for part in unit.split("/")) or unit in UNITS
