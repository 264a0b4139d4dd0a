import pytest

from codriver.errors import CodriverError
from codriver.tasks.arithmetic import Arithmetic
from codriver.tasks.mix import Part, Verifier, draw_prompts
from tests.records import an_episode


def parts(*shares):
    return [Part(name=f"t{i}", task=Arithmetic(operands=2 + i), share=s, teacher=f"x{i}") for i, s in enumerate(shares)]


def test_steps_are_consecutive_pieces_of_one_stream_whatever_their_size():
    mix = parts(1.0, 2.0)
    whole = draw_prompts(mix, seed=3, step=0, count=24)
    assert [p for step in range(4) for p in draw_prompts(mix, seed=3, step=step, count=6)] == whole


def test_tasks_are_interleaved_by_share_and_carry_their_teacher():
    drawn = draw_prompts(parts(1.0, 3.0), seed=0, step=2, count=200)
    assert sum(p.task == "t1" for p in drawn) == pytest.approx(150, abs=2)
    assert all(p.teacher == p.task.replace("t", "x") for p in drawn)
    assert {p.task for p in drawn[:8]} == {"t0", "t1"}


class Failing:
    name = "failing"

    def __init__(self, fail_times):
        self.left = fail_times

    def verify(self, episode):
        if self.left > 0:
            self.left -= 1
            raise RuntimeError("scorer died")
        return Arithmetic(operands=2).verify(episode)


def test_a_failing_verifier_is_asked_once_more_then_the_verdict_is_invalid():
    once, twice = Failing(1), Failing(2)
    episode = an_episode(
        completions=("#2",), prompt=Arithmetic(operands=2).prompts("train", seed=0, start=0, count=1)[0]
    )
    (ok,) = Verifier(tasks=lambda n: once, max_invalid_frac=1).verify([episode])
    (bad,) = Verifier(tasks=lambda n: twice, max_invalid_frac=1).verify([episode])
    assert ok.verdict.label != "invalid"
    assert (bad.verdict.label, bad.verdict.detail) == ("invalid", "RuntimeError: scorer died")


def test_too_many_invalid_verdicts_stop_the_run_with_the_first_reason():
    with pytest.raises(
        CodriverError, match=r"2 of 2 verdicts are invalid \(limit 20%\); the first: episode .*scorer died"
    ):
        Verifier(tasks=lambda n: Failing(99), max_invalid_frac=0.2).verify([an_episode(), an_episode(seed=1)])


def test_cut_and_failed_rollouts_are_invalid_not_wrong():
    verifier = Verifier(tasks=lambda n: Arithmetic(), max_invalid_frac=1.0)
    assert {v.verdict.label for v in verifier.verify([an_episode(finish="cut"), an_episode(finish="error")])} == {
        "invalid"
    }
