"""Judged states of arithmetic in its three styles; levels; typed problems."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codriver.tasks.arithmetic import Arithmetic
from codriver.tasks.protocol import ChecksStates, TypedAnswers
from codriver.tasks.split import draw_problem, is_held_out
from tests.records import an_episode

PROBLEM = "3+4-5"
SHORT = {"on_path": "on", "recoverable": "may", "irrecoverable": "lost", "unknown": "?"}


def states(text, finish="stop", **options):
    """(characters, label, constraint) of each state."""
    task = Arithmetic(**options)
    episode = an_episode(prompt=task.prompt_of(PROBLEM), completions=(text,), finish=finish)
    return [(text[s.start : s.stop], SHORT[s.label], s.constraint) for s in task.check_states(episode)]


def test_a_right_solution_is_on_path_at_every_step_and_at_its_answer():
    on = ("on", "")
    assert states("3+4=7;7-5=2;#2") == [("3+4=7", *on), ("7-5=2", *on), ("#2", *on)]
    assert states("3+4=7-5=2#2", style="chained") == [("3+4=7", *on), ("-5=2", *on), ("#2", *on)]
    words = " 3 + 4 = 7 \n7 - 5 = 2\nAnswer: 2"
    assert states(words, style="words") == [("3 + 4 = 7", *on), ("7 - 5 = 2", *on), ("Answer: 2", *on)]


STEP_1 = "step 1: wrote 3+4=8, expected 3+4=7"
STEP_2 = "step 2: wrote 8-5=3, expected 7-5=2"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (
            "3+4=8;8-5=3;#3",
            {},
            [("3+4=8", "may", STEP_1), ("8-5=3", "may", STEP_2), ("#3", "lost", "the answer is 2, written 3")],
        ),
        # the next step goes on from the true value: back on the path
        ("3+4=8;7-5=2;#2", {}, [("3+4=8", "may", STEP_1), ("7-5=2", "on", ""), ("#2", "on", "")]),
        # the same, where every step counts: nothing after the first wrong one can help
        (
            "3+4=8;7-5=2;#2",
            {"check": "working"},
            [("3+4=8", "lost", STEP_1), ("7-5=2", "lost", STEP_1), ("#2", "lost", STEP_1)],
        ),
        (
            "3+4=8-5=3#3",
            {"style": "chained"},
            [("3+4=8", "may", STEP_1), ("-5=3", "may", STEP_2), ("#3", "lost", "the answer is 2, written 3")],
        ),
        ("#2", {}, [("#2", "on", "")]),
        (
            "#2",
            {"check": "working"},
            [
                ("#2", "may", "step 1: wrote nothing that is a step, expected 3+4=7"),
                ("", "lost", "step 1: wrote nothing that is a step, expected 3+4=7"),
            ],
        ),
        (
            "3+4=7;",
            {},
            [("3+4=7", "on", ""), ("", "lost", "step 2: wrote nothing that is a step, expected 7-5=2")],
        ),
        (
            "3+4=7;hm;#2",
            {},
            [
                ("3+4=7", "on", ""),
                ("hm", "may", "step 2: wrote nothing that is a step, expected 7-5=2"),
                ("#2", "on", ""),
            ],
        ),
        (
            "3+4=7;7-5=2;2+0=2;#2",
            {},
            [("3+4=7", "on", ""), ("7-5=2", "on", ""), ("2+0=2", "?", "all 2 steps stand before it"), ("#2", "on", "")],
        ),
        (
            "#3;#2",
            {},
            [("#3", "lost", "the answer is 2, written 3"), ("#2", "lost", "the answer is 2, written 3")],
        ),
        ("#2;#3", {}, [("#2", "on", ""), ("#3", "lost", "the answer is 2, written 3")]),
        ("", {}, [("", "lost", "step 1: wrote nothing that is a step, expected 3+4=7")]),
        (
            "3+4=7\n7-5=2",  # words without a named answer: the last result stands for it
            {"style": "words"},
            [("3+4=7", "on", ""), ("7-5=2", "on", "")],
        ),
        (
            "3+4=7x#2",
            {"style": "chained"},
            [
                ("3+4=7", "on", ""),
                ("x#2", "may", "step 2: wrote nothing that is a step, expected 7-5=2"),
                ("#2", "on", ""),
            ],
        ),
    ],
)
def test_where_an_episode_leaves_the_path_and_whether_it_can_come_back(text, options, expected):
    assert states(text, **options) == expected


def test_an_episode_that_was_cut_off_ends_in_a_lost_state_even_with_the_right_answer():
    assert states("#2", finish="length") == [("#2", "on", ""), ("", "lost", "the completion ended by length")]


def near_solutions(task, prompt):
    """Solutions with some characters changed, doubled, dropped or cut off."""
    right = task.solution(prompt)
    edit = st.tuples(
        st.integers(0, len(right)), st.integers(0, 2), st.sampled_from(["", "1", "7", ";", "#", "=", "\n"])
    )

    def edited(edits):
        text = right
        for at, dropped, added in edits:
            text = text[:at] + added + text[at + dropped :]
        return text

    return st.lists(edit, max_size=3).map(edited)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["compact", "chained", "words"]), st.sampled_from(["answer", "working"]), st.data())
def test_an_episode_is_solved_exactly_if_no_state_is_lost(style, check, data):
    task = Arithmetic(style=style, check=check, operands=4)
    prompt = task.prompt_of("3+4-5+6")
    text = data.draw(near_solutions(task, prompt))
    episode = an_episode(prompt=prompt, completions=(text,))
    found = task.check_states(episode)
    lost = [s.label == "irrecoverable" for s in found if s.label != "unknown"]
    assert (task.verify(episode).label == "correct") == (not any(lost))
    assert lost == sorted(lost), "what is lost stays lost"
    assert all((s.constraint == "") == (s.label == "on_path") and s.stop <= len(text) for s in found)


def test_the_level_is_the_number_of_operands():
    task = Arithmetic(operands=5, min_operands=2)
    for prompt in task.prompts("train", seed=0, start=0, count=50):
        assert prompt.level == f"operands={1 + sum(map(prompt.messages[0].content.count, '+-'))}"


def test_a_typed_problem_is_the_prompt_that_a_draw_would_give():
    task = Arithmetic(operands=3)
    assert isinstance(task, TypedAnswers) and isinstance(task, ChecksStates)
    drawn = task.prompts("train", seed=0, start=0, count=1)[0]
    typed = task.prompt_of(" 8 + 6+5 ")
    assert (typed.messages, typed.reference, typed.level) == (drawn.messages, drawn.reference, drawn.level)


@pytest.mark.parametrize(
    "gold", ["", "12", "3*4", "3++4", "-3+4", "3+", "٣+4", "3+4=7", "1+" * 60 + "1", "9" * 10 + "+1"]
)
def test_what_is_no_problem_is_refused(gold):
    with pytest.raises(ValueError, match="expected a problem such as '3\\+8-5'"):
        Arithmetic().prompt_of(gold)


def test_a_split_without_problems_is_said_instead_of_searched_for_ever():
    assert not is_held_out("1+1")
    with pytest.raises(ValueError, match="no problem of the heldout split in 20000 draws"):
        draw_problem(lambda random: "1+1", str, "heldout", seed=0, number=0)
