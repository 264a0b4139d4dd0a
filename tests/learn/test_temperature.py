"""Each episode is scored at the temperature that sampled it, by the student and by every frozen model."""

import numpy as np
import pytest
import torch

from codriver.allocation import Share, allocate
from codriver.models.logprob_head import chosen_logp
from codriver.models.packing import TokenSequence
from codriver.models.score import score_tokens
from codriver.teachers.local import LocalTeacher
from tests.learn.test_learner import learner
from tests.records import an_episode, scored

TEMPERATURES = (1.0, 0.5, 1.4)


def episodes():
    return [
        an_episode(seed=i, sampled=3 + i, id=f"0/{i}/0", group=f"0/{i}", temperature=t)
        for i, t in enumerate(TEMPERATURES)
    ]


def by_hand(model, episode, temperature):
    with torch.no_grad():
        logits = model(torch.from_numpy(episode.token_ids)[None]).logits[0, :, :23]
    rows = np.flatnonzero(episode.trainable)
    logp = (logits[rows - 1] / temperature).log_softmax(-1)
    return logp[range(len(rows)), episode.token_ids[rows]].numpy()


def test_a_batch_of_several_temperatures_is_measured_at_each_ones_own(llama):
    model = llama()
    batch = allocate(
        [scored(e, teacher_logp=np.zeros(e.num_sampled)) for e in episodes()], {"supervised": Share(coef=1.0)}
    )
    update = learner(llama(), ("supervised",)).learn(batch)
    for episode, facts in zip(batch, update.facts, strict=True):
        np.testing.assert_allclose(facts.student_logp, by_hand(model, episode, episode.temperature), atol=1e-5)


@pytest.mark.parametrize(("fixed", "expected"), [(None, TEMPERATURES), (2.0, (2.0, 2.0, 2.0))])
def test_a_teacher_follows_the_episode_unless_it_has_a_temperature_of_its_own(llama, fixed, expected):
    model = llama()
    teacher = LocalTeacher(name="t", model=model, vocab_size=23, temperature=fixed, max_length=64)
    for episode, view, temperature in zip(episodes(), teacher.score(episodes()), expected, strict=True):
        np.testing.assert_allclose(view.logp, by_hand(model, episode, temperature), atol=1e-5)


def test_rows_of_several_temperatures_do_not_depend_on_chunks():
    torch.manual_seed(0)
    hidden, weight = torch.randn(7, 4, requires_grad=True), torch.randn(9, 4)
    targets, scale = torch.arange(7), torch.linspace(0.5, 2, 7)
    whole = chosen_logp(hidden, lambda h: h @ weight.T, targets, temperature=scale)
    parts = chosen_logp(hidden, lambda h: h @ weight.T, targets, temperature=scale, chunk_rows=3)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)
    (expected,) = torch.autograd.grad(whole[0].sum(), hidden)
    (got,) = torch.autograd.grad(parts[0].sum(), hidden)
    torch.testing.assert_close(got, expected)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        chosen_logp(hidden, lambda h: h @ weight.T, targets, temperature=scale - 0.5)


def test_scoring_takes_one_temperature_per_sequence(llama):
    model = llama()
    sequences = [TokenSequence(ids=e.token_ids, chosen=np.flatnonzero(e.trainable)) for e in episodes()]
    together = score_tokens(model, sequences, vocab_size=23, temperature=TEMPERATURES)
    for sequence, temperature, found in zip(sequences, TEMPERATURES, together, strict=True):
        (alone,) = score_tokens(model, [sequence], vocab_size=23, temperature=temperature)
        np.testing.assert_allclose(found.logp, alone.logp, atol=1e-6)
