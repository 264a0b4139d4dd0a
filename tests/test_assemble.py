"""What only shows when the rooms are wired together."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer

from codriver.errors import InputError
from codriver.models.load import load_policy, save_policy
from codriver.models.render import render
from codriver.models.tiny import make_tiny
from tests.test_pipeline import figures, run

LORA = {
    "student": {"model": "tiny:llama-200k", "lora": {"rank": 4, "alpha": 8.0}},
    "supervised": {},
    "stages": [],
    "compare": None,
}
TEACHER = {"teachers": {"own": {"model": "student", "hint": "{solution}"}}}


def test_an_adapter_is_trained_checkpointed_resumed_and_merged_at_the_end(tmp_path):
    changes = LORA | TEACHER | {"signals": {"distill": {"coef": 1.0}}, "steps": 4}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = run(tmp_path / "a", **changes)[0].root
    pressed = []
    with pytest.raises(Exception, match="interrupted after step 1"):
        run(tmp_path / "b", interrupted=lambda: pressed.append(1) or len(pressed) == 2, **changes)
    resumed = run(tmp_path / "b", resume=True, **changes)[0].root
    assert figures(resumed) == figures(whole)
    start, final = load_policy("tiny:llama-200k", seed=0), load_policy(str(whole / "final"))
    moved = [
        n for n, p in final.model.named_parameters() if not torch.equal(p, dict(start.model.named_parameters())[n])
    ]
    assert moved and all("proj" in name for name in moved)


def test_a_teacher_with_another_vocabulary_is_refused_with_the_first_differing_token(tmp_path):
    policy = load_policy("tiny:llama-200k")
    vocabulary = policy.tokenizer.get_vocab()
    swapped = (
        policy.tokenizer.backend_tokenizer.to_str()
        .replace('"+":', '"PLUS":')
        .replace('"-":', '"+":')
        .replace('"PLUS":', '"-":')
    )
    policy.tokenizer._tokenizer = Tokenizer.from_str(swapped)
    save_policy(policy, tmp_path / "teacher")
    first = min(vocabulary["+"], vocabulary["-"])
    with pytest.raises(InputError, match=rf"{first}.*'\+'.*'-'"):
        run(
            tmp_path,
            teachers={"t": {"model": str(tmp_path / "teacher")}},
            signals={"distill": {"coef": 1.0}},
            supervised={},
            stages=[],
            compare=None,
        )


def test_a_list_longer_than_the_vocabulary_is_refused(tmp_path):
    distill = {"coef": 1.0, "form": "top_k", "top_k": 500}
    with pytest.raises(
        InputError, match="signals.distill.top_k: got 500, expected at most the vocabulary's 101 tokens"
    ):
        run(
            tmp_path,
            teachers={"t": {"model": "tiny:qwen2"}},
            signals={"distill": distill},
            supervised={},
            stages=[],
            compare=None,
        )


def test_the_students_tokens_are_the_same_behind_a_hint_and_nothing_of_the_hint_is_in_its_context(tmp_path):
    root = run(tmp_path)[0].root
    rows = pq.read_table(root / "stages" / "both" / "episodes" / "step_00000.parquet").to_pylist()
    _, tokenizer = make_tiny("llama-200k", seed=0)

    class Turn:
        role = "user"

    for row in rows:
        turn = Turn()
        turn.content = row["prompt"]
        prompt = render(tokenizer, [turn])
        assert row["token_ids"][: len(prompt)] == prompt.tolist()
        assert len(row["token_ids"]) == len(prompt) + row["num_sampled"]


def test_padded_rows_of_an_output_head_are_accepted_and_ignored(tmp_path):
    policy = load_policy("tiny:llama-200k", seed=3)
    policy.model.resize_token_embeddings(128)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[101:] = 5.0  # would win every draw
    save_policy(policy, tmp_path / "padded")
    outcome, _ = run(
        tmp_path,
        student={"model": str(tmp_path / "padded")},
        teachers={"t": {"model": "tiny:llama-200k"}},
        signals={"distill": {"coef": 1.0, "form": "full"}},
        supervised={},
        stages=[],
        compare=None,
        steps=2,
    )
    ids = np.concatenate(
        [r["token_ids"] for r in pq.read_table(outcome.root / "episodes" / "step_00000.parquet").to_pylist()]
    )
    assert ids.max() < 101
