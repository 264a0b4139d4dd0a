import json

import pytest

from codriver.tasks.dataset import Dataset
from tests.records import an_episode


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "\n".join(json.dumps({"prompt": f"{i}+1?", "answer": f"{i + 1}", "how": f"{i}+1={i + 1}"}) for i in range(60))
    )
    return str(path)


def test_splits_do_not_overlap_and_an_epoch_visits_every_problem_once(rows):
    task = Dataset(path=rows, solution_column="how")
    train = {p.id for p in task.prompts("train", seed=0, start=0, count=500)}
    held = {p.id for p in task.prompts("heldout", seed=0, start=0, count=500)}
    assert len({i.rpartition("/")[2] for i in train | held}) == 60 == len(train) + len(held)
    epoch = task.prompts("train", seed=0, start=0, count=len(train))
    assert {p.id for p in epoch} == train
    assert task.solution(epoch[0]) == epoch[0].messages[0].content.replace("?", f"={epoch[0].reference}")


@pytest.mark.parametrize(
    ("match", "text", "label"),
    [
        ("exact", " 7 ", "correct"),
        ("exact", "it is 7", "incorrect"),
        ("number", "so it is 7.", "correct"),
        ("number", "7 or 8", "incorrect"),
        ("number", "none", "unparseable"),
        ("exact", "", "unparseable"),
    ],
)
def test_matching(rows, match, text, label):
    task = Dataset(path=rows, match=match)
    prompt = next(p for p in task.prompts("train", seed=0, start=0, count=60) if p.reference == "7")
    assert task.verify(an_episode(prompt=prompt, completions=(text,))).label == label


def test_a_prompt_in_both_files_is_refused(rows):
    with pytest.raises(ValueError, match="heldout_path: got 60 prompts that are in path too"):
        Dataset(path=rows, heldout_path=rows)
