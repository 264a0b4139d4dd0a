"""Tasks by name: those that ship, and a user's own."""

import textwrap

import pytest

from codriver.errors import InputError
from codriver.tasks.registry import TASKS, make_task, option_problems, task_class

OWN = """
    from dataclasses import dataclass
    from codriver.episode import Message, Prompt, Verdict

    @dataclass(frozen=True)
    class Parrot:
        word: str = "hi"

        @property
        def name(self):
            return "parrot"

        def prompts(self, split, *, seed, start, count):
            return [Prompt(id=f"parrot/{split}/{i}", task="parrot", messages=(Message(role="user", content=self.word),),
                           reference=self.word) for i in range(start, start + count)]

        def solution(self, prompt):
            return prompt.reference

        def verify(self, episode):
            right = episode.text == episode.prompt.reference
            return Verdict(label="correct" if right else "incorrect", reward=float(right), parts={"same": float(right)})

    class NoTask:
        pass
"""


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "parrot.py"
    path.write_text(textwrap.dedent(OWN))
    return path


@pytest.mark.parametrize("name", TASKS)
def test_every_task_that_ships_has_a_class(name):
    assert task_class(name).__doc__


def test_a_users_own_file_is_a_task(own_file):
    assert option_problems(f"{own_file}:Parrot", {"word": "yo"}) == []
    task = make_task(f"{own_file}:Parrot", {"word": "yo"})
    assert task.prompts("train", seed=0, start=3, count=1)[0].id == "parrot/train/3"


def test_a_wrong_option_of_a_users_own_task_is_named_as_for_any_other(own_file):
    (found,) = option_problems(f"{own_file}:Parrot", {"wurd": "yo"})
    assert "wurd" in found and "write 'word'" in found


def test_a_task_that_is_none_is_refused_with_what_it_lacks(own_file):
    with pytest.raises(InputError, match="a class without name, prompts, solution, verify"):
        task_class(f"{own_file}:NoTask")
    with pytest.raises(InputError, match="found None"):
        task_class(f"{own_file}:Nowhere")


def test_an_unknown_name_gets_the_nearest_and_a_missing_module_is_said():
    with pytest.raises(InputError, match="write 'arithmetic'"):
        task_class("arithmetik")
    with pytest.raises(InputError, match="No module named 'no_such_module'"):
        task_class("no_such_module:Task")
    with pytest.raises(InputError, match="FileNotFoundError"):
        task_class("no_such_file.py:Task")
