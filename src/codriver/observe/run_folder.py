"""The run folder: what is written while a run goes on. Lines are only appended, so a kill loses at most one.

recipe.yaml  environment.json  metrics.jsonl  events.jsonl  episodes/  tokens/  checkpoints/  final/  report.html
"""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from codriver.episode import Allocated
from codriver.errors import DISK_FULL, InputError, disk_error

PACKAGES = ("codriver", "torch", "transformers", "numpy", "pyarrow", "pydantic")


class RunFolder:
    """One stage's folder. Its only state is on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_done(self) -> bool:
        return any(e["event"] in ("done", "stopped") for e in self.events())

    @property
    def is_begun(self) -> bool:
        """Whether there is something to resume. A run that was refused before its first figure leaves nothing."""
        metrics, checkpoints = self.path / "metrics.jsonl", self.path / "checkpoints"
        return (metrics.is_file() and metrics.stat().st_size > 0) or (
            checkpoints.is_dir() and any(checkpoints.iterdir())
        )

    def create(self, recipe_text: str) -> None:
        """Raises InputError: the folder cannot be made or written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "recipe.yaml").write_text(recipe_text)
            self.write_environment()
        except OSError as error:
            if error.errno in DISK_FULL:
                raise disk_error(error, self.path) from error
            raise InputError(f"output_dir: {self.path} cannot be written ({error}); give another one") from error

    def write_environment(self) -> None:
        (self.path / "environment.json").write_text(json.dumps(environment(), indent=1))

    def require_same_recipe(self, recipe_text: str) -> None:
        """A resumed run must be the run that was started."""
        stored = (self.path / "recipe.yaml").read_text()
        if stored == recipe_text:
            return
        old, new = set(stored.splitlines()), set(recipe_text.splitlines())
        change = "; ".join(sorted(f"was `{line.strip()}`" for line in old - new)[:3])
        change += " -> " + "; ".join(sorted(f"`{line.strip()}`" for line in new - old)[:3])
        raise InputError(
            f"{self.path}: the recipe is not the one this run was started with ({change}); "
            f"undo the change to resume, or give another output_dir"
        )

    def log(self, step: int, metrics: Mapping[str, float], *, row: Literal["training", "evaluation", "final"]) -> None:
        """`training`: what optimizer step number `step` did. `evaluation`, `final`: the weights after `step` steps."""
        numbers = {k: (v if math.isfinite(v) else None) for k, v in metrics.items()}
        _append(self.path / "metrics.jsonl", {"step": step, "row": row, "time": round(time.time(), 3)} | numbers)

    def event(self, name: str, **facts: Any) -> None:
        _append(self.path / "events.jsonl", {"time": round(time.time(), 3), "event": name} | facts)

    def rows(self) -> list[dict[str, Any]]:
        return _read(self.path / "metrics.jsonl")

    def events(self) -> list[dict[str, Any]]:
        return _read(self.path / "events.jsonl")

    def rewind(self, next_step: int) -> None:
        """Forget what was logged behind a checkpoint: training steps from `next_step` on, evaluations after it."""
        kept = [
            r for r in self.rows() if r["step"] < next_step or (r["step"] == next_step and r["row"] == "evaluation")
        ]
        temporary = self.path / ".metrics.jsonl.tmp"
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        os.replace(temporary, self.path / "metrics.jsonl")

    def save_failed_batch(self, batch: Sequence[Allocated], reason: str) -> str:
        """The batch that gave a non-finite loss: ids, log-probs, advantages and weights of each episode."""
        path = self.path / "failed_batch.npz"
        arrays: dict[str, Any] = {"reason": np.array(reason), "ids": np.array([e.id for e in batch])}
        for i, e in enumerate(batch):
            arrays |= {f"{i}/token_ids": e.token_ids, f"{i}/trainable": e.trainable}
            arrays |= {f"{i}/behaviour_logp": e.behaviour_logp, f"{i}/advantage": np.array(e.outcome_advantage)}
            arrays |= {f"{i}/teacher_logp": e.teacher.logp} if e.teacher else {}
            arrays |= {f"{i}/weight/{signal}": share.weight for signal, share in e.weights.items()}
        np.savez(path, **arrays)
        self.event("non_finite", reason=reason)
        return str(path)


def environment() -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "command": sys.argv,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:  # PackageNotFoundError: running from a source tree that is not installed
        return "not installed"


def _append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("ab+") as stream:
        if stream.tell() and not _ends_with_newline(stream):
            stream.write(b"\n")  # a killed process left half a line; it must not swallow this one
        stream.write(json.dumps(row).encode() + b"\n")


def _ends_with_newline(stream: BinaryIO) -> bool:
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) == b"\n"


def _read(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a kill may have cut one."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
