import numpy as np
import pytest

from codriver.episode import TeacherView
from codriver.errors import CodriverError
from codriver.scoring import Scorer
from tests.records import a_prompt, an_episode, verified


def group(rewards, name="0/0", teacher="expert", labels=None):
    return [
        verified(
            an_episode(seed=i, id=f"{name}/{i}", group=name, prompt=a_prompt(teacher=teacher)),
            reward=r,
            label=(labels or {}).get(i, ""),
        )
        for i, r in enumerate(rewards)
    ]


class FixedTeacher:
    def __init__(self, name="expert", fail=()):
        self.name, self.fail, self.asked = name, fail, []

    def score(self, episodes):
        self.asked += [e.id for e in episodes]
        return [
            "timed out"
            if e.id in self.fail
            else TeacherView(
                teacher=self.name,
                version=0,
                logp=np.full(e.num_sampled, -1.0, np.float32),
                entropy=np.ones(e.num_sampled, np.float32),
            )
            for e in episodes
        ]


def scorer(**changes):
    return Scorer(**(dict(outcome=True, teachers={}, reference=None) | changes))


def test_advantages_are_relative_to_the_group_by_hand():
    out = scorer(scale="none").score([*group([1.0, 0.0, 0.0, 0.0]), *group([1.0, 1.0, 0.0, 0.0], name="0/1")])
    assert [s.outcome_advantage for s in out] == pytest.approx([0.75, -0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5])


def test_a_group_that_agrees_has_exactly_no_advantage_and_says_so():
    out = scorer().score(group([0.95] * 8))
    assert {(s.outcome_advantage, s.outcome_reason) for s in out} == {(0.0, "group_agrees")}


def test_an_invalid_member_is_out_of_the_baseline():
    out = scorer(scale="none").score(group([1.0, 0.0, 0.0], labels={2: "invalid"}))
    assert [(s.outcome_advantage, s.outcome_reason) for s in out] == [(0.5, ""), (-0.5, ""), (0.0, "invalid")]


def test_each_episode_is_judged_by_its_own_teacher_and_a_failure_stays_with_its_episode():
    a, b = FixedTeacher("a", fail={"0/0/3"}), FixedTeacher("b")
    batch = [
        *group([1, 0, 0, 1, 0, 0], teacher="a"),
        *group([1, 0], name="0/1", teacher="b"),
        *group([1, 0], name="0/2", teacher=""),
    ]
    out = scorer(teachers={"a": a, "b": b}).score(batch)
    assert a.asked == [f"0/0/{i}" for i in range(6)] and b.asked == ["0/1/0", "0/1/1"]
    assert [s.teacher.teacher if s.teacher else s.teacher_reason for s in out] == ["a"] * 3 + ["teacher_failed"] + [
        "a"
    ] * 2 + ["b"] * 2 + ["no_teacher"] * 2


def test_a_teacher_that_fails_often_stops_the_run_with_its_name():
    with pytest.raises(
        CodriverError, match=r"teacher expert failed on 1 of 2 episodes \(limit 20%\); the first reason: timed out"
    ):
        scorer(teachers={"expert": FixedTeacher(fail={"0/0/0"})}).score(group([1, 0]))


def test_signals_that_are_off_ask_nobody():
    out = scorer(outcome=False).score(group([1, 0]))
    assert {(s.outcome_reason, s.teacher_reason, s.reference_logp) for s in out} == {("not_asked", "not_asked", None)}
