"""Which split a made-up problem belongs to, and drawing one of a given split by its number alone."""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from codriver.tasks.protocol import HELD_OUT_SHARE, Split

Problem = TypeVar("Problem")
MAX_DRAWS = 20_000
"""Draws after which a split is taken to be empty: with one problem in ten held out, only a task of few problems is."""


def is_held_out(problem: str) -> bool:
    """Whether a problem belongs to the held-out split, in every run, for every seed."""
    return hashlib.sha256(problem.encode()).digest()[0] % HELD_OUT_SHARE == 0


def draw_problem(
    draw: Callable[[np.random.Generator], Problem | None],
    key: Callable[[Problem], str],
    split: Split,
    *,
    seed: int,
    number: int,
) -> Problem:
    """Draw until the problem falls into the split; the same number gives the same problem for ever.

    Args:
        draw: one problem, or None for a draw to be thrown away.
        key:  what decides the split: problems of one key are one problem, however they are written.

    Raises:
        ValueError: no problem of the split came up.
    """
    random = np.random.default_rng([seed, number, split == "heldout"])
    for _ in range(MAX_DRAWS):
        problem = draw(random)
        if problem is not None and is_held_out(key(problem)) == (split == "heldout"):
            return problem
    raise ValueError(
        f"options: got no problem of the {split} split in {MAX_DRAWS} draws, expected a task of at least some dozens "
        f"of problems, change: raise its sizes"
    )
