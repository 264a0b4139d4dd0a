"""A user's own problems: one JSON object per line, with columns for prompt, answer and (for a cold start) solution."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from codriver.episode import Episode, Message, Prompt, Verdict
from codriver.errors import InputError
from codriver.tasks.protocol import HELD_OUT_SHARE, Split

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Problems from a JSONL file; a tenth of them, chosen by a hash of their prompt, is held out."""

    path: str
    """File of JSON objects, one a line."""
    prompt: str = "prompt"
    """Column of the problem's text."""
    answer: str = "answer"
    """Column of the reference answer."""
    solution_column: str = ""
    """Column of a worked solution, for `sft` and hints; empty: none."""
    match: Literal["exact", "number"] = "exact"
    """exact: the completion, stripped, is the answer. number: its last number is the answer's last number."""
    heldout_path: str = ""
    """A file of its own for the held-out split; empty: split `path` by hash."""

    def __post_init__(self) -> None:
        if self.match not in ("exact", "number"):
            raise ValueError(f"match: got {self.match!r}, expected exact or number, change: write exact")
        for key in ("path", "heldout_path"):
            path = getattr(self, key)
            if path and not Path(path).is_file():
                raise ValueError(f"{key}: got {path!r}, expected a file that exists, change: correct the path")
        _ = self._rows  # malformed rows are named now, before any model loads

    @property
    def name(self) -> str:
        return "dataset"

    def prompts(self, split: Split, *, seed: int, start: int, count: int) -> Sequence[Prompt]:
        """A new order of all problems in each epoch."""
        rows = self._rows[split]
        chosen = []
        for position in range(start, start + count):
            epoch, place = divmod(position, len(rows))
            line, row = rows[_epoch_order(len(rows), seed, epoch, split == "heldout")[place]]
            chosen.append(
                Prompt(
                    id=f"dataset/{split}/{line}",
                    task="dataset",
                    messages=(Message(role="user", content=row[self.prompt]),),
                    reference=str(row[self.answer]),
                    hint=str(row[self.solution_column]) if self.solution_column else "",
                )
            )
        return chosen

    def solution(self, prompt: Prompt) -> str:
        return prompt.hint

    def verify(self, episode: Episode) -> Verdict:
        gold = episode.prompt.reference.strip()
        if self.match == "exact":
            said: str | None = episode.text.strip()
        else:
            said, gold = _last_number(episode.text), _last_number(gold) or gold
        if not said:
            return Verdict(label="unparseable", reward=0.0, parts={"answer": 0.0}, detail="no answer found")
        right = said == gold and episode.finish in ("stop", "environment")
        return Verdict(
            label="correct" if right else "incorrect",
            reward=float(right),
            parts={"answer": float(right)},
            detail="" if right else f"said {said[:80]!r}, expected {gold[:80]!r}",
        )

    @cached_property
    def _rows(self) -> dict[Split, list[tuple[int, dict[str, Any]]]]:
        rows = self._read(self.path)
        if self.heldout_path:
            split: dict[Split, list[tuple[int, dict[str, Any]]]] = {
                "train": rows,
                "heldout": self._read(self.heldout_path),
            }
            both = {r[self.prompt] for _, r in split["train"]} & {r[self.prompt] for _, r in split["heldout"]}
            if both:
                text = sorted(both)[0]
                raise ValueError(
                    f"heldout_path: got {len(both)} prompts that are in path too, such as {text[:60]!r}, "
                    f"expected none, change: remove them from one of the two files"
                )
        else:
            split = {"train": [], "heldout": []}
            for line, row in rows:
                held = hashlib.sha256(row[self.prompt].encode()).digest()[0] % HELD_OUT_SHARE == 0
                split["heldout" if held else "train"].append((line, row))
        for name, part in split.items():
            if not part:
                raise ValueError(
                    f"path: got no problem for the {name} split in {self.path}, expected at least one, "
                    f"change: add rows, or give heldout_path"
                )
        return split

    def _read(self, path: str) -> list[tuple[int, dict[str, Any]]]:
        rows, problems = [], []
        needed = [c for c in (self.prompt, self.answer, self.solution_column) if c]
        for number, text in enumerate(Path(path).read_text().splitlines(), start=1):
            if not text.strip():
                problems.append(f"{path}:{number}: empty line")
                continue
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                problems.append(f"{path}:{number}: not JSON ({error})")
                continue
            missing = [c for c in needed if not isinstance(row, dict) or str(row.get(c) or "").strip() == ""]
            if missing:
                problems.append(f"{path}:{number}: nothing in column {', '.join(map(repr, missing))}")
                continue
            rows.append((number, row | {self.prompt: str(row[self.prompt])}))
        if problems:
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise InputError("; ".join(problems[:5]) + more)
        return rows


@lru_cache(maxsize=8)
def _epoch_order(num_rows: int, seed: int, epoch: int, is_held_out: bool) -> list[int]:
    """Kept: a run asks for its prompts one by one."""
    order: list[int] = np.random.default_rng([seed, epoch, is_held_out]).permutation(num_rows).tolist()
    return order


def _last_number(text: str) -> str | None:
    found = NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None
