import errno
import json

import pytest
import torch

from codriver.errors import CheckpointError, CodriverError
from codriver.learn.checkpoint import newest_checkpoint, open_checkpoint, write_checkpoint


def save_model(folder):
    folder.mkdir()
    (folder / "weights").write_bytes(b"w" * 100)


def write(root, step, **changes):
    return write_checkpoint(
        root, **(dict(next_step=step, save_model=save_model, state={"x": torch.arange(3)}, keep=2) | changes)
    )


def test_what_is_written_is_read_back_and_old_ones_go(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step)
    found = newest_checkpoint(tmp_path, tell=pytest.fail)
    assert found.next_step == 3 and found.state()["x"].tolist() == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00002", "step_00003"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest", "empty"])
def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path, damage):
    write(tmp_path, 1)
    newest = write(tmp_path, 2).folder
    weights = newest / "model" / "weights"
    {
        "truncate": lambda: weights.write_bytes(b"w" * 99),
        "flip": lambda: weights.write_bytes(b"v" + b"w" * 99),
        "remove": weights.unlink,
        "manifest": (newest / "manifest.json").unlink,
        "empty": lambda: (newest / "manifest.json").write_text(""),
    }[damage]()
    told = []
    assert newest_checkpoint(tmp_path, tell=told.append).next_step == 1
    assert len(told) == 1 and "step_00002" in told[0] and "trying the one before it" in told[0]


@pytest.mark.parametrize("moment", ["model", "trainer.pt", "manifest.json"])
def test_a_kill_while_writing_leaves_the_one_before_it(tmp_path, moment, monkeypatch):
    write(tmp_path, 1)

    class Killed(BaseException):
        pass

    def die(*args, **kwargs):
        raise Killed

    if moment == "trainer.pt":
        monkeypatch.setattr(torch, "save", die)
    elif moment == "manifest.json":
        monkeypatch.setattr(json, "dumps", die)
    with pytest.raises(Killed):
        write(tmp_path, 2, **({"save_model": die} if moment == "model" else {}))
    monkeypatch.undo()
    assert newest_checkpoint(tmp_path, tell=pytest.fail).next_step == 1
    assert write(tmp_path, 2).next_step == 2


def test_a_full_disk_says_what_to_do_and_keeps_the_last_checkpoint(tmp_path):
    write(tmp_path, 1)

    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CodriverError, match="the disk is full. The last whole checkpoint is untouched: .* --resume"):
        write(tmp_path, 2, save_model=full)
    assert [p.name for p in tmp_path.iterdir()] == ["step_00001"]


def test_no_checkpoint_is_none_and_a_missing_one_is_an_error(tmp_path):
    assert newest_checkpoint(tmp_path / "none", tell=pytest.fail) is None
    with pytest.raises(CheckpointError, match="no readable manifest"):
        open_checkpoint(tmp_path)
