import pytest

from codriver.tasks.arithmetic import Arithmetic
from codriver.tasks.registry import option_problems
from codriver.verify.working import check_working
from tests.records import an_episode


def judge(task, prompt, text, finish="stop"):
    return task.verify(an_episode(prompt=prompt, completions=(text,), finish=finish))


@pytest.mark.parametrize(
    "options",
    [
        dict(operands=6),
        dict(operands=4, modulus=10),
        dict(operands=3, style="words", max_number=20),
        dict(operands=5, min_operands=2, subtract=False),
        dict(operands=6, style="chained", max_value=9),
    ],
)
def test_every_own_solution_is_correct_with_every_step_right(options):
    task = Arithmetic(**options)
    for prompt in task.prompts("train", seed=1, start=0, count=50):
        verdict = judge(task, prompt, task.solution(prompt))
        assert (verdict.label, verdict.reward, verdict.parts) == ("correct", 1.0, {"answer": 1.0, "working": 1.0})


def test_train_and_held_out_problems_never_overlap_and_are_the_same_for_ever():
    task = Arithmetic(operands=3)
    train = {p.messages[0].content for p in task.prompts("train", seed=0, start=0, count=3000)}
    held = {p.messages[0].content for s in (0, 1) for p in task.prompts("heldout", seed=s, start=0, count=300)}
    assert not train & held
    assert task.prompts("train", seed=0, start=7, count=2) == task.prompts("train", seed=0, start=0, count=9)[7:]
    assert task.prompts("train", seed=0, start=0, count=1)[0].messages[0].content == "8+6+5="


def test_the_first_wrong_step_is_named_and_counted():
    task = Arithmetic(operands=4)
    prompt = next(p for p in task.prompts("train", seed=0, start=0, count=1))
    right = task.solution(prompt)
    steps = right.split(";")
    wrong = ";".join([steps[0], steps[1] + "0", *steps[2:]])
    verdict = judge(task, prompt, wrong)
    assert verdict.label == "correct" and verdict.parts["working"] == pytest.approx(2 / 3)
    assert verdict.detail.startswith("step 2: wrote ")
    assert judge(Arithmetic(operands=4, check="working"), prompt, wrong).label == "incorrect"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("#{a}", "correct"),
        ("#{a}#{a}", "correct"),
        ("#{b}", "incorrect"),
        ("#{a};#{b}", "unparseable"),
        ("", "unparseable"),
        ("{a}", "unparseable"),
        ("#", "unparseable"),
        ("#-", "unparseable"),
        ("#1" + "0" * 5000, "unparseable"),
        ("#{a}" + "9" * 20, "unparseable"),
        ("##{a}", "correct"),
        ("#٣", "unparseable"),
    ],
)
def test_answers_that_are_wrong_missing_doubled_or_hostile(text, label):
    task = Arithmetic(operands=3)
    prompt = task.prompts("train", seed=0, start=0, count=1)[0]
    right = int(prompt.reference)
    assert judge(task, prompt, text.replace("{a}", str(right)).replace("{b}", str(right + 1))).label == label


@pytest.mark.parametrize(
    ("text", "right", "detail"),
    [
        ("3+4=7-5=2#2", 1.0, ""),
        ("3+4=7-5=3#3", 0.5, "step 2: wrote 7-5=3, expected 7-5=2"),
        ("3+4=8-5=3#3", 0.0, "step 1: wrote 3+4=8, expected 3+4=7"),
        ("3+4=8-5=2#2", 0.0, "step 1: wrote 3+4=8, expected 3+4=7"),
        ("3+4=7#2", 0.5, "step 2: wrote nothing that is a step, expected 7-5=2"),
        ("3+4=7x-5=2#2", 0.5, "step 2: wrote nothing that is a step, expected 7-5=2"),
        ("#2", 0.0, "step 1: wrote nothing that is a step, expected 3+4=7"),
    ],
)
def test_chained_steps(text, right, detail):
    found = check_working(text, terms=[("+", 3), ("+", 4), ("-", 5)], form="chained")
    assert (found.right_step_frac, found.detail) == (right, detail)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3 + 4 = 7\n7 - 5 = 2\nAnswer: 2", 2),
        ("The answer is 2.", 2),
        ("3 + 4 = 7, so 7 - 5 = 2", 2),
        ("Answer: 2\nAnswer: 3", None),
        ("3 + 4 = 7\nAnswer: 2.5", None),
        ("it is 2", None),
        ("3 + 4 = 7.5", None),
    ],
)
def test_answers_in_words(text, answer):
    assert check_working(text, terms=[("+", 3), ("+", 4), ("-", 5)], form="words").answer == answer


def test_running_values_stay_within_their_bound():
    task = Arithmetic(operands=9, style="chained", max_value=9)
    for prompt in task.prompts("train", seed=0, start=0, count=200):
        results = [int(link.split("#")[0].split("+")[0].split("-")[0]) for link in task.solution(prompt).split("=")[1:]]
        assert len(results) == 8 and all(0 <= r <= 9 for r in results)


@pytest.mark.parametrize("finish", ["length", "context"])
def test_a_completion_that_did_not_end_is_not_an_answer(finish):
    task = Arithmetic(operands=3)
    prompt = task.prompts("train", seed=0, start=0, count=1)[0]
    assert judge(task, prompt, task.solution(prompt), finish).label == "unparseable"


def test_options_out_of_range_say_what_to_change():
    for options, message in (
        (dict(operands=1), "operands: got 1, expected at least 2"),
        (dict(operands=3, min_operands=5), "min_operands: got 5, expected 2 to operands"),
        (dict(modulus=1), "modulus: got 1"),
        (dict(style="loud"), "style: got 'loud', expected one of compact, chained, words"),
        (
            dict(operand=3),
            "operand: got 'operand', expected an option of the task arithmetic, change: write 'operands'",
        ),
        (dict(subtract=1), "subtract: got 1, expected true or false"),
    ):
        (found,) = option_problems("arithmetic", options)
        assert message in found
