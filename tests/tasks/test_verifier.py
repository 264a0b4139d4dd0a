"""The stage `verify`: failures, time, order."""

import threading
import time

import pytest

from codriver.episode import Verdict
from codriver.errors import CodriverError
from codriver.tasks.arithmetic import Arithmetic
from codriver.tasks.verifier import Verifier
from tests.records import an_episode

RIGHT = Verdict(label="correct", reward=1.0)


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


class Timed:
    """Takes as long as its answer says; remembers when it was asked."""

    name = "timed"

    def __init__(self):
        self.asked = []

    def verify(self, episode):
        self.asked.append((episode.id, threading.current_thread()))
        time.sleep(float(episode.text))
        return RIGHT


def timed(*seconds, timeout_s=0.3, threads=2):
    task = Timed()
    verifier = Verifier(tasks=lambda n: task, max_invalid_frac=1.0, timeout_s=timeout_s, threads=threads)
    episodes = [an_episode(id=f"0/0/{i}", completions=(str(s),)) for i, s in enumerate(seconds)]
    return verifier.verify(episodes), task


def test_a_verdict_that_takes_too_long_is_asked_once_more_then_invalid_and_the_others_keep_theirs():
    verified, task = timed(0, 3, 0, 0, 0.01)
    assert [v.verdict.label for v in verified] == ["correct", "invalid", "correct", "correct", "correct"]
    assert verified[1].verdict.detail == "no verdict within 0.3 s"
    assert [i for i, _ in task.asked].count("0/0/1") == 2 and len(task.asked) == 6


def test_the_clock_of_a_verdict_starts_when_its_verifier_does_not_when_it_is_queued():
    """Eight of 0.1 s on one thread: the last waits 0.7 s, longer than the limit, and is right all the same."""
    verified, _ = timed(*[0.1] * 8, threads=1)
    assert {v.verdict.label for v in verified} == {"correct"}


def test_verdicts_overlap_on_threads_and_none_is_left_running():
    before = threading.active_count()
    start = time.perf_counter()
    verified, task = timed(*[0.1] * 8, threads=8)
    assert time.perf_counter() - start < 0.6 and len({t for _, t in task.asked}) > 1
    time.sleep(0.05)
    assert threading.active_count() <= before and len(verified) == 8


def test_a_late_answer_of_one_batch_is_not_an_answer_of_the_next():
    task = Timed()
    verifier = Verifier(tasks=lambda n: task, max_invalid_frac=1.0, timeout_s=0.1, threads=1)
    slow = an_episode(id="slow", completions=("0.25",))
    fast = [an_episode(id=f"fast {i}", completions=("0.09",)) for i in range(4)]
    labels = [v.verdict.label for v in verifier.verify([slow, *fast])]
    assert labels == ["invalid", *["correct"] * 4]


class Checking(Arithmetic):
    """Judges one state, in characters that are given."""

    def __init__(self, start, stop):
        object.__setattr__(self, "span", (start, stop))

    def verify(self, episode):
        return RIGHT

    def check_states(self, episode):
        from codriver.episode import StateCheck

        return [StateCheck(turn=0, start=self.span[0], stop=self.span[1], label="recoverable", constraint="b is 7")]


def letters(ids, stop):
    return "".join(chr(96 + i) for i in ids)


def test_states_come_with_the_verdict_as_tokens_of_the_episode():
    episode = an_episode(prompt_len=3, sampled=4, completions=("abcd",))
    (v,) = Verifier(tasks=lambda n: Checking(1, 3), max_invalid_frac=1.0, decode=letters).verify([episode])
    (state,) = v.states
    assert (state.start, state.stop, state.label, state.constraint) == (4, 6, "recoverable", "b is 7")


def test_states_outside_of_the_episode_make_the_verdict_invalid_with_the_reason():
    episode = an_episode(completions=("abcd",))
    (v,) = Verifier(tasks=lambda n: Checking(1, 9), max_invalid_frac=1.0, decode=letters).verify([episode])
    assert v.verdict.label == "invalid" and "characters 1 to 9 of completion 0" in v.verdict.detail
