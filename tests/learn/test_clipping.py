"""Which share of the outcome's tokens the bounds of the ratio stop: by hand, and through the learner."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from codriver.allocation import Share, allocate
from codriver.learn.learner import AdamSettings, Learner
from codriver.learn.objective import Tokens, outcome_clipping, outcome_term
from tests.conftest import tiny_llama
from tests.records import an_episode, scored

RATIO = [1.3, 1.3, 0.7, 0.7, 1.1, 0.9]
ADVANTAGE = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
BOUNDS = {"clip_low": 0.2, "clip_high": 0.2}


def tokens(ratio, advantage, episode=None):
    zero = torch.zeros(len(ratio))
    return Tokens(
        logp=torch.tensor(ratio).log().requires_grad_(),
        prox_logp=zero,
        behaviour_logp=zero,
        outcome_advantage=torch.tensor(advantage),
        judged=zero.bool(),
        teacher_logp=zero,
        teacher_entropy=zero,
        reference_logp=zero,
        episode=torch.tensor(episode or [0] * len(ratio)),
        uniform=zero,
        over_distributions=lambda value: zero,
    )


def stopped(settings, *given):
    return [x.nonzero().flatten().tolist() for x in outcome_clipping(**BOUNDS, **settings)(tokens(*given))]


def test_praise_stops_at_the_high_bound_and_blame_at_the_low_one():
    assert stopped({}, RATIO, ADVANTAGE) == [[3], [0]]


def test_a_token_without_praise_or_blame_is_stopped_by_nothing():
    assert stopped({}, RATIO, [0.0] * 6) == [[], []]


def test_cispo_bounds_the_high_side_whatever_the_sign():
    assert stopped({"loss": "cispo"}, RATIO, ADVANTAGE) == [[], [0, 1]]


def test_a_sequence_ratio_stops_whole_episodes():
    # geometric means: 1.3 for the first two, 0.7 and 1.1 -> 0.88 for the next, 0.9 alone
    assert stopped({"ratio": "sequence"}, [1.3, 1.3, 0.7, 1.1, 0.7], [1.0] * 2 + [-1.0] * 3, [0, 0, 1, 1, 2]) == [
        [4],
        [0, 1],
    ]


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_stopped_tokens_are_those_without_gradient(ratio):
    given = tokens(RATIO, ADVANTAGE, [0, 1, 2, 3, 4, 5])
    (gradient,) = torch.autograd.grad(outcome_term(**BOUNDS, ratio=ratio)(given).sum(), given.logp)
    low, high = outcome_clipping(**BOUNDS, ratio=ratio)(given)
    assert torch.equal(gradient == 0, low | high)


def test_the_share_is_of_the_last_pass_over_the_whole_batch():
    def fractions(**changes):
        it = Learner(
            tiny_llama(),
            vocab_size=23,
            terms={"outcome": outcome_term(**BOUNDS)},
            learning_rate=lambda step: 0.2,
            adam=AdamSettings(max_grad_norm=100.0),
            save_batch=lambda batch, reason: "",
            clipping=outcome_clipping(**BOUNDS),
            **changes,
        )
        batch = [
            scored(an_episode(seed=i, sampled=4, id=f"0/{i}/0"), advantage=a) for i, a in enumerate([1.0, -1.0, 0.0])
        ]
        return it.learn(allocate(batch, {"outcome": Share(coef=1.0)})).clip_frac

    assert fractions() == (0.0, 0.0)  # the first pass starts at ratio 1
    low, high = fractions(num_iterations=2)
    assert low > 0 and high > 0 and low + high <= 1
    assert fractions(num_iterations=2, micro_batch_tokens=1) == (low, high)


def test_where_no_outcome_reaches_a_token_there_is_no_share():
    it = Learner(
        tiny_llama(),
        vocab_size=23,
        terms={"outcome": outcome_term(**BOUNDS)},
        learning_rate=lambda step: 0.0,
        adam=AdamSettings(),
        save_batch=lambda batch, reason: "",
        clipping=outcome_clipping(**BOUNDS),
    )
    record = replace(scored(an_episode(sampled=3), advantage=0.0), outcome_reason="group_agrees")
    made = allocate([record], {"outcome": Share(coef=1.0)})
    assert not np.any(made[0].weights["outcome"].weight)
    assert it.learn(made).clip_frac is None
