r"""Writes every product out, for a LaTeX reader that takes `(3)(4)` and `3(\frac{1}{2})` for mixed numbers, 7 and 3.5.

latex2sympy2_extended 1.11 adds any whole number to any positive rational that follows it without a sign, whatever its
`interpret_as_mixed_fractions` says. Only `3\frac{1}{2}`, a number and a fraction of numbers, is a mixed number here.
"""

import re

PIECE = re.compile(r"\s*(\\[A-Za-z]+|\\.|\d+|[^\s])", re.ASCII | re.DOTALL)
MIXED = re.compile(r"(?<![\d.])(\d+)\s*(\\frac\{\s*\d+\s*\}\{\s*\d+\s*\})", re.ASCII)
HEADS = set(
    r"\sin \cos \tan \cot \sec \csc \arcsin \arccos \arctan \sinh \cosh \tanh \log \ln \lg \exp "
    r"\gcd \lcm \max \min \det \sum \prod \int".split()
)
"""What takes the operand behind it as its own."""
BINARY = set(r"\cdot \times \div \ast \to \rfloor \rceil".split())
"""Commands that start no factor."""


def explicit_products(latex: str) -> str:
    r"""
    >>> explicit_products(r"3(x+1)(2)"), explicit_products(r"\sin^{2}(x)"), explicit_products(r"3\frac{1}{2}")
    ('3 \\cdot (x+1) \\cdot (2)', '\\sin^{2}(x)', '(3+\\frac{1}{2})')
    """
    latex = MIXED.sub(r"(\1+\2)", latex)
    done: list[str] = []
    before = ""
    owners: list[str] = []  # of each open brace: head (script of a function), group (turned round), or other
    is_head = False  # the scripts that come next belong to a function
    for match in PIECE.finditer(latex):
        piece, is_factor_before = match[1], _ends_factor(before)
        if piece == "{":
            is_group = is_factor_before and before != "}"
            owners.append("group" if is_group else "head" if is_head and before in "^_" else "other")
            done.append((r" \cdot (") if is_group else match[0])
            before = piece
            continue
        if piece == "}":
            owner = owners.pop() if owners else "other"
            done.append(")" if owner == "group" else match[0])
            before = "" if owner == "head" else ")" if owner == "group" else "}"
            is_head = owner == "head"
            continue
        if is_factor_before and _starts_factor(piece):
            done.append(r" \cdot ")
            done.append(piece)
        else:
            done.append(match[0])
        if piece not in "^_":
            is_head = piece in HEADS
        before = piece
    return "".join(done)


def _ends_factor(piece: str) -> bool:
    return piece.isdigit() or piece in (")", "}", "!", r"\rfloor", r"\rceil")


def _starts_factor(piece: str) -> bool:
    if piece == "(" or piece.isdigit():
        return True
    return len(piece) > 2 and piece[0] == "\\" and piece not in BINARY
