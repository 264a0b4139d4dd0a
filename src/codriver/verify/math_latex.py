r"""One spelling of LaTeX: what people and models write in many ways becomes what the readers behind this expect.

Nothing here drops anything that could change a value: only spacing, math delimiters, sizes of brackets, and the two or
more spellings of one command.
"""

import re

from codriver.verify.math_text import NotReadable
from codriver.verify.math_units import FUNCTIONS

CHARACTERS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∙": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "√": r"\sqrt ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∅": r"\emptyset ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "γ": r"\gamma ",
    "λ": r"\lambda ",
    "μ": r"\mu ",
    "φ": r"\phi ",
    "ω": r"\omega ",
    "²": "^{2}",
    "³": "^{3}",
    "’": "'",
    "\u00a0": " ",
    "\u202f": " ",
    "\u2009": " ",
}
DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|\$\$")
EDGES = re.compile(r"^[\s*`]+|[\s*`]+$")
SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits)(?![A-Za-z])\s*\.?")
SPACES = re.compile(r"(?<!\\)\\(?:[,;:> ]|q?quad(?![A-Za-z])|hspace\{[^{}]*\}|phantom\{[^{}]*\})|~")
SPELLINGS = [
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![A-Za-z])"), r"\\binom"),
    (re.compile(r"\\(?:lbrace|lbrack)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace|rbrack)(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(?:varnothing|emptyset)(?![A-Za-z])"), r"\\{\\}"),
    (re.compile(r"\\(?:l?vert|rvert|mid)(?![A-Za-z])"), r"|"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=\d)\{,\}(?=\d{3})"), ""),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\(?:text|textbf|mbox|textrm|mathrm)\s*\{\s*,?\s*(?:or|and)\s*,?\s*\}"), " , "),
    (re.compile(r"\\(?:lor|vee|land|wedge)(?![A-Za-z])"), " , "),
    (re.compile(r",?\s+(?:or|and)\s+(?![a-z]{3,})"), " , "),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!="), r"\\ne "),
    (re.compile(r"\+/-|\+-"), r"\\pm "),
]
THIN = re.compile(r"(?<=\d)(?:\\,|\\ |\\;)(?=\d{3}(?!\d))")
WRAPPED = re.compile(
    r"(^|[^\d)}\]])\\(text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname|boldsymbol|mathsf)"
    r"\s*\{\s*([^{}]*?)\s*\}"
)
FUNCTION = re.compile(r"(?<![\\A-Za-z])(" + "|".join(sorted(FUNCTIONS, key=len, reverse=True)) + r")(?![A-Za-z])")
SCRIPT = re.compile(r"([_^])\s*(\\[A-Za-z]+|-?\d+(?:\.\d+)?(?!\d)|[A-Za-z])(?!\{)")
MAX_COMMANDS = 200


def plain_latex(text: str) -> str:
    r"""The text in one spelling.

    >>> plain_latex(r"$\left(\dfrac12,\ \sqrt3\right)$"), plain_latex("2**10"), plain_latex(r"\text{(A)}")
    ('(\\frac{1}{2}, \\sqrt{3})', '2^{10}', '(A)')
    """
    for character, spelling in CHARACTERS.items():
        text = text.replace(character, spelling)
    text = EDGES.sub("", DELIMITERS.sub(" ", THIN.sub("", text)))
    text = _without_dollars(text)
    text = SPACES.sub(" ", SIZES.sub("", text))
    for pattern, spelling in SPELLINGS:
        text = pattern.sub(spelling, text)
    if text.count("\\") > MAX_COMMANDS:
        raise NotReadable(f"the answer has more than {MAX_COMMANDS} commands")
    text = FUNCTION.sub(r"\\\1", _unwrapped(text)).replace(r"\infinity", r"\infty")
    text = _arguments(_arguments(text, r"\frac", 2), r"\binom", 2)
    text = _arguments(text, r"\sqrt", 1)
    text = SCRIPT.sub(r"\1{\2}", text)
    return re.sub(r"[ \t\n\r]+", " ", text).strip().rstrip(".").strip()


def _without_dollars(text: str) -> str:
    r"""`$` is a math delimiter where there are two, money where there is one before a digit; `\$` is always money."""
    bare = re.findall(r"(?<!\\)\$", text)
    if len(bare) % 2 == 0:
        text = re.sub(r"(?<!\\)\$", " ", text)
    return text.strip()


def _unwrapped(text: str) -> str:
    r"""`\mathrm{e}` is e and `\text{(A)}` is (A); behind a number, what is wrapped may be a unit and stays."""
    for _ in range(MAX_COMMANDS):
        changed = WRAPPED.sub(lambda m: m[1] + _plain_word(m[3]), text, count=1)
        if changed == text:
            break
        text = changed
    return text


def _plain_word(word: str) -> str:
    return word if not word or len(word) > 1 or not word.isalpha() else f" {word} "


def _arguments(text: str, command: str, count: int) -> str:
    r"""Braces around arguments that TeX takes without: `\frac12`, `\sqrt3`; and `\sqrt(2)`, which plain text has."""
    pattern = re.compile(re.escape(command) + r"(?![A-Za-z])(\s*\[[^\[\]]*\])?")
    done, position = "", 0
    while match := pattern.search(text, position):
        done += text[position : match.start()] + command + (match[1] or "").strip()
        position = match.end()
        for _ in range(count):
            argument, position = _argument(text, position, command)
            done += "{" + _arguments(argument, command, count) + "}"
    return done + text[position:]


def _argument(text: str, position: int, command: str) -> tuple[str, int]:
    while position < len(text) and text[position] == " ":
        position += 1
    if position >= len(text):
        raise NotReadable(f"{command} lacks an argument")
    opening = text[position]
    if opening == "{" or (opening == "(" and command == r"\sqrt"):
        depth = 0
        for place in range(position, len(text)):
            depth += (text[place] in "{(") - (text[place] in "})")
            if depth == 0:
                return text[position + 1 : place], place + 1
        raise NotReadable(f"an argument of {command} is not closed")
    token = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|.", re.DOTALL).match(text, position)
    assert token is not None
    one = token[0]
    if one[0].isdigit() and command != r"\sqrt":
        one = one[0]  # TeX takes one digit: \frac12 is one half
    elif one.startswith("\\") and one.strip("\\") in ("frac", "sqrt", "binom"):
        raise NotReadable(f"an argument of {command} needs braces")
    return one, position + len(one)
