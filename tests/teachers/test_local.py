import numpy as np
import pytest

from codriver.models.packing import TokenSequence
from codriver.models.score import score_tokens
from codriver.teachers.local import LocalTeacher
from tests.records import an_episode


def teacher(model, **changes):
    settings = dict(name="expert", model=model, vocab_size=23, temperature=1.0, max_length=64)
    return LocalTeacher(**(settings | changes))


def test_each_token_is_scored_given_the_tokens_before_it(llama):
    model, episodes = llama(), [an_episode(seed=i, sampled=3 + i) for i in range(3)]
    for view, episode in zip(teacher(model).score(episodes), episodes, strict=True):
        sequence = TokenSequence(ids=episode.token_ids, chosen=np.flatnonzero(episode.trainable))
        (alone,) = score_tokens(model, [sequence], vocab_size=23)
        np.testing.assert_allclose(view.logp, alone.logp, atol=1e-6)
        np.testing.assert_allclose(view.entropy, alone.entropy, atol=1e-6)
        assert (view.teacher, view.hidden) == ("expert", None)


def test_the_students_tokens_are_scored_verbatim_behind_the_hinted_prompt(llama):
    model, episode = llama(), an_episode(prompt_len=3, sampled=4)
    hinted = np.array([7, 8, 9, 10, episode.token_ids[2]])
    (view,) = teacher(model, prompt=lambda e: hinted).score([episode])
    whole = np.concatenate([hinted, episode.token_ids[3:]])
    (expected,) = score_tokens(model, [TokenSequence(ids=whole, chosen=np.arange(5, 9))], vocab_size=23)
    np.testing.assert_allclose(view.logp, expected.logp, atol=1e-6)


def test_a_hint_that_changes_the_token_before_the_answer_is_refused(llama):
    episode = an_episode(prompt_len=3, sampled=4)
    with pytest.raises(
        ValueError, match="the token before the first response token must be the same for student and teacher expert"
    ):
        teacher(llama(), prompt=lambda e: np.array([7, (episode.token_ids[2] + 1) % 23])).score([episode])


def test_an_episode_that_does_not_fit_fails_alone_with_the_reason(llama):
    short, long = an_episode(sampled=3), an_episode(seed=1, sampled=30)
    views = teacher(llama(), max_length=20).score([short, long])
    assert len(views[0].logp) == 3 and views[1] == "33 tokens with the hint, context 20"


def test_log_probs_that_are_not_finite_are_a_failure_never_a_number(llama):
    model = llama()
    model.lm_head.weight.data[5] = float("nan")
    (view,) = teacher(model).score([an_episode(sampled=4)])
    assert view == "4 log-probs are not finite"


def test_an_empty_completion_has_an_empty_view(llama):
    (view,) = teacher(llama(), keep_hidden=True).score([an_episode(sampled=0)])
    assert len(view.logp) == 0 and view.hidden.shape == (0, 16)
