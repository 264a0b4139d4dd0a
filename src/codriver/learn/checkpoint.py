"""Checkpoints that are whole or not there: written to a temporary folder, listed in a manifest, then renamed.

checkpoints/step_00010/   model/ (HF folder)   trainer.pt   manifest.json (size and digest of every file)
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from codriver.errors import CheckpointError, disk_error

MANIFEST = "manifest.json"
NAME = re.compile(r"step_(\d{5,})")
SaveModel = Callable[[Path], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint whose files are all there, as written."""

    folder: Path
    next_step: int
    """The step to do first after resuming."""

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.folder / "trainer.pt", weights_only=True)
        return state


def write_checkpoint(
    root: Path, *, next_step: int, save_model: SaveModel, state: Mapping[str, Any], keep: int
) -> Checkpoint:
    """Write, verify, rename, then drop all but the newest `keep`.

    Raises:
        CodriverError: the disk is full; what was half written is removed and older checkpoints stay.
    """
    final = root / f"step_{next_step:05d}"
    temporary = root / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        save_model(temporary / "model")
        torch.save(dict(state), temporary / "trainer.pt")
        files = {str(f.relative_to(temporary)): _fingerprint(f) for f in sorted(temporary.rglob("*")) if f.is_file()}
        _write_synced(temporary / MANIFEST, json.dumps({"next_step": next_step, "files": files}, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise disk_error(error, root) from error
    for old in _folders(root)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return Checkpoint(folder=final, next_step=next_step)


def newest_checkpoint(root: Path, *, tell: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint, or None; `tell` hears of each damaged one that is passed over."""
    for folder in _folders(root):
        try:
            return open_checkpoint(folder)
        except CheckpointError as error:
            tell(f"{error}; trying the one before it")
    return None


def open_checkpoint(folder: Path) -> Checkpoint:
    """Raises CheckpointError: a file is missing, truncated or altered."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        listed, next_step = manifest["files"], int(manifest["next_step"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {folder} has no readable manifest ({type(error).__name__})") from None
    for name, fingerprint in listed.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {folder} lacks {name}")
        if _fingerprint(file) != fingerprint:
            raise CheckpointError(f"checkpoint {folder} is damaged: {name} is not as it was written")
    return Checkpoint(folder=folder, next_step=next_step)


def _folders(root: Path) -> list[Path]:
    found = [f for f in root.glob("step_*") if NAME.fullmatch(f.name)] if root.is_dir() else []
    return sorted(found, key=lambda f: int(f.name.removeprefix("step_")), reverse=True)


def _fingerprint(file: Path) -> list[Any]:
    with file.open("rb") as stream:
        return [file.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest()]


def _write_synced(file: Path, text: str) -> None:
    with file.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
