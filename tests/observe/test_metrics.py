from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from codriver.episode import TokenFacts, Update, Verdict
from codriver.observe.metrics import pass_at_k, step_metrics
from tests.records import a_prompt, allocated, an_episode, scored


def an_update(batch, logp=-1.0):
    facts = tuple(
        TokenFacts(
            student_logp=np.full(e.num_sampled, logp, np.float32),
            student_entropy=np.full(e.num_sampled, 0.5, np.float32),
        )
        for e in batch
    )
    losses = {s: 0.25 for s in batch[0].weights}
    return Update(
        loss=0.25,
        signal_loss=losses,
        grad_norm=2.0,
        learning_rate=0.1,
        num_tokens=sum(e.num_sampled for e in batch),
        num_padding=0,
        facts=facts,
    )


def test_every_figure_of_a_small_batch_by_hand():
    def one(i, group, advantage, n, teacher_logp, finish="stop", **why):
        episode = an_episode(
            seed=i, id=f"{group}/{i}", group=group, sampled=n, finish=finish, prompt=a_prompt(teacher="expert")
        )
        return allocated(
            scored(episode, advantage=advantage, teacher_logp=[teacher_logp] * n, **why),
            outcome=0.0 if why else 0.1,
            distill=0.1,
        )

    batch = [
        one(0, "a", 1.0, 2, -1.0),
        one(1, "a", -1.0, 4, -3.0, finish="length"),
        one(2, "b", 0.0, 2, -2.0, outcome_reason="group_agrees"),
        one(3, "b", 0.0, 2, -2.0, outcome_reason="group_agrees"),
    ]
    m = step_metrics(batch, an_update(batch))
    expected = {
        "reward/mean": 0.25, "verdict/correct": 0.25, "verdict/incorrect": 0.75, "verdict/invalid": 0.0,
        "rewards/answer/invalid_frac": 0.0, "group/pass_at_g": 0.5, "group/all_correct": 0.0, "group/all_incorrect": 0.5,
        "frac_reward_zero_std": 0.5, "completions/mean_length": 2.5, "completions/max_length": 4, "completions/clipped_ratio": 0.25,
        "completions/finish/length": 0.25, "policy/kl_behaviour": 0.0, "policy/entropy": 0.5, "policy/grad_norm": 2.0,
        "teacher/expert/kl": (0 * 2 + 2 * 4 + 1 * 4) / 10, "teacher/kl/task/arithmetic": 1.2, "teacher/kl/verdict/correct": 0.0,
        "teacher/expert/token_frac": 1.0, "teacher/expert/failed": 0.0, "teacher/expert/entropy": 1.0,
        "signal/outcome/token_frac": 0.6, "signal/outcome/weight_mean": 1.0, "signal/distill/token_frac": 1.0,
        "tokens/generated": 10, "tokens/trained": 10,
    }  # fmt: skip
    for name, value in expected.items():
        assert m[name] == pytest.approx(value, abs=1e-6), name


def test_invalid_episodes_are_in_no_reward_figure():
    good = allocated(scored(an_episode(id="a/0", group="a")), outcome=1.0)
    bad = allocated(
        scored(an_episode(id="a/1", group="a", seed=1), advantage=0.0, outcome_reason="invalid"), outcome=0.0
    )
    bad = replace(bad, verdict=Verdict.invalid("died"))
    m = step_metrics([good, bad], an_update([good, bad]))
    assert (m["reward/mean"], m["verdict/invalid"], m["group/all_correct"]) == (1.0, 0.5, 1.0)


def test_drift_between_sampler_and_learner_shows_as_a_positive_kl():
    batch = [allocated(scored(an_episode()), outcome=1.0)]
    m = step_metrics(batch, an_update(batch, logp=-1.5))  # the sampler said -1.0
    assert m["policy/kl_behaviour"] == pytest.approx(np.exp(-0.5) - 1 + 0.5)
    assert m["policy/ratio_max"] == pytest.approx(np.exp(0.5), rel=1e-5)


def test_pass_at_k_equals_the_share_of_all_subsets_that_hold_a_right_one():
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([i < c for i in range(n)], k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match=r"k must be in 1\.\.2, got 3"):
        pass_at_k(2, 1, 3)
