import numpy as np
import pytest

from codriver.errors import InputError
from codriver.rollout.play import Draw, play
from codriver.rollout.protocol import Completion, Sampling
from codriver.rollout.written import written_episode
from tests.records import a_prompt


class ScriptedEngine:
    """Ends requests in the reverse order of submission, with tokens that name their request."""

    version = 7

    def __init__(self):
        self.waiting = []

    @property
    def num_pending(self):
        return len(self.waiting)

    def submit(self, requests):
        self.waiting += requests

    def step(self):
        request = self.waiting.pop()
        n = 1 + request.seed % 3
        return [
            Completion(
                id=request.id,
                token_ids=np.full(n, len(request.id)),
                logp=np.full(n, -0.5, np.float32),
                kept_logp=np.zeros(n, np.float32),
                version=np.full(n, self.version),
                finish="stop",
            )
        ]

    def publish(self, version):
        self.version = version


def draws(count=2, samples=3):
    return [Draw(prompt=a_prompt(i), group=f"0/{i}", samples=samples, seed=i) for i in range(count)]


def played(**changes):
    return play(
        ScriptedEngine(),
        draws(**changes),
        sampling=Sampling(max_tokens=5),
        render=lambda p: np.array([1, 5, 6]),
        decode=lambda ids, stop: ",".join(map(str, ids)),
    )


def test_episodes_come_back_in_order_with_their_own_prompt_group_and_tokens():
    episodes = played()
    assert [e.id for e in episodes] == ["0/0/0", "0/0/1", "0/0/2", "0/1/0", "0/1/1", "0/1/2"]
    assert [e.prompt.id[-1] for e in episodes] == list("000111")
    for e in episodes:
        assert e.token_ids[:3].tolist() == [1, 5, 6] and e.trainable.tolist() == [False] * 3 + [True] * e.num_sampled
        assert set(e.policy_version[e.trainable]) == {7} and set(e.policy_version[~e.trainable]) == {-1}
        assert not e.behaviour_logp[:3].any() and set(e.behaviour_logp[3:]) == {np.float32(-0.5)}


def test_the_same_problem_drawn_twice_is_two_groups():
    two = [Draw(prompt=a_prompt(0), group=f"0/{i}", samples=1, seed=i) for i in range(2)]
    episodes = play(
        ScriptedEngine(), two, sampling=Sampling(max_tokens=5), render=lambda p: np.array([1]), decode=lambda i, s: ""
    )
    assert [e.group for e in episodes] == ["0/0", "0/1"]


def written(prompt_ids=(1, 5, 6), whole=(1, 5, 6, 8, 9, 2, 4), **changes):
    values = dict(
        render=lambda p: np.array(prompt_ids),
        render_whole=lambda p, s: np.array(whole),
        stop_ids=(2,),
        whole_text=False,
        max_length=10,
    )
    return written_episode(a_prompt(), "0/0", changes.pop("solution", "x"), **(values | changes))


def test_a_written_solution_is_trainable_up_to_its_stop_token_and_no_further():
    episode = written()
    assert episode.token_ids.tolist() == [1, 5, 6, 8, 9, 2]
    assert episode.trainable.tolist() == [False, False, False, True, True, True] and episode.author == "dataset"


def test_pretraining_learns_every_token_but_the_first():
    assert written(whole_text=True).trainable.tolist() == [False, True, True, True, True, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(solution=""), "its task gives no solution"),
        (dict(prompt_ids=(1, 5, 7)), "first difference at token 2"),
        (dict(max_length=5), "6 tokens with its solution, but the context holds 5"),
    ],
)
def test_solutions_that_cannot_be_learnt_from_are_refused_with_the_prompt(changes, message):
    with pytest.raises(InputError, match=f"arithmetic/train/0.*{message}"):
        written(**changes)
