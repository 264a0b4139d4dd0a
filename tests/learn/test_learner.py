import copy

import numpy as np
import pytest
import torch

from codriver.allocation import Share, allocate
from codriver.errors import NonFiniteLoss
from codriver.learn.distill_terms import DistillSettings, distill_term
from codriver.learn.learner import AdamSettings, Learner
from codriver.learn.objective import outcome_term, reference_term, supervised_term
from tests.records import an_episode, scored

TERMS = {
    "outcome": outcome_term(clip_low=0.2, clip_high=0.2),
    "distill": distill_term(DistillSettings()),
    "reference": reference_term(estimator="k2"),
    "supervised": supervised_term(),
}


def a_batch(count: int = 6):
    random = np.random.default_rng(1)
    out = []
    for i in range(count):
        n = int(random.integers(2, 12))
        episode = an_episode(seed=i, prompt_len=int(random.integers(2, 6)), sampled=n, id=f"0/{i}/0", group=f"0/{i}")
        out.append(
            scored(
                episode,
                advantage=float(random.normal()),
                teacher_logp=random.normal(size=n) - 2,
                reference_logp=(random.normal(size=n) - 2).astype(np.float32),
            )
        )
    return out


def learner(model, signals=("outcome", "distill", "reference", "supervised"), **changes):
    settings = dict(
        vocab_size=23,
        terms={s: TERMS[s] for s in signals},
        learning_rate=lambda step: 0.1,
        adam=AdamSettings(),
        save_batch=lambda batch, reason: "nowhere",
    )
    return Learner(model, **(settings | changes))


def shares(signals, aggregation="token_mean"):
    return {s: Share(coef=0.5, aggregation=aggregation, constant_length=9) for s in signals}


def gradient_of(model, batch, signals, aggregation="token_mean", order=None, **changes):
    order = order or list(range(len(batch)))
    made = allocate([batch[i] for i in order], shares(signals, aggregation))
    it = learner(model, signals, **changes)
    it.optimizer.zero_grad()
    losses, facts, _ = it._accumulate(made)
    return (
        losses,
        torch.cat([p.grad.flatten() for p in model.parameters()]),
        [facts[order.index(i)] for i in range(len(batch))],
    )


@pytest.mark.parametrize("signal", list(TERMS))
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_loss_and_gradient_of_each_signal_do_not_depend_on_micro_batches_chunks_or_order(llama, signal, aggregation):
    model, batch = llama(), a_batch()
    loss, grad, facts = gradient_of(model, batch, [signal], aggregation)
    assert grad.abs().max() > 1e-4
    for how in (
        dict(micro_batch_tokens=1),
        dict(micro_batch_tokens=40),
        dict(head_chunk_tokens=3),
        dict(order=[5, 0, 3, 1, 4, 2]),
        dict(gradient_checkpointing=True),
    ):
        other_loss, other_grad, other_facts = (
            gradient_of(llama(), batch, [signal], aggregation, **how)
            if "gradient_checkpointing" not in how
            else gradient_of(m := llama(), batch, [signal], aggregation, **how)
        )
        assert other_loss[signal] == pytest.approx(loss[signal], abs=1e-6), how
        torch.testing.assert_close(other_grad, grad, atol=1e-8, rtol=1e-6, msg=str(how))
        for a, b in zip(facts, other_facts, strict=True):
            np.testing.assert_allclose(a.student_logp, b.student_logp, atol=1e-6)


def test_the_whole_batch_is_the_denominator_by_hand(llama):
    """Token mean: the sum over all tokens of both episodes divided by their common count."""
    model, batch = llama(), a_batch(2)
    loss, _, facts = gradient_of(model, batch, ["supervised"])
    tokens = np.concatenate([f.student_logp for f in facts])
    assert loss["supervised"] == pytest.approx(-0.5 * tokens.sum() / len(tokens), rel=1e-6)


def test_an_episode_that_no_signal_reaches_changes_nothing(llama):
    batch = a_batch(4)
    masked = scored(an_episode(seed=77, sampled=9, id="x", group="x"), advantage=0.0, outcome_reason="invalid")
    _, grad, _ = gradient_of(llama(), batch, ["outcome"])
    _, with_masked, _ = gradient_of(llama(), [*batch, masked], ["outcome"])
    torch.testing.assert_close(with_masked, grad, atol=1e-9, rtol=1e-6)


def test_an_episode_that_no_signal_reaches_is_measured_without_a_backward_pass(llama):
    masked = scored(an_episode(seed=77, sampled=9, id="x", group="x"), advantage=0.0, outcome_reason="group_agrees")
    model, seen = llama(), []
    model.model.register_forward_hook(
        lambda m, a, out: seen.append((len(out.last_hidden_state), torch.is_grad_enabled()))
    )
    _, _, facts = gradient_of(model, [*a_batch(2), masked], ["outcome"])
    assert sorted(seen) == [(1, False), (2, True)] and len(facts[2].student_logp) == 9 and facts[2].student_logp.all()


def test_tokens_behind_an_episode_and_prompt_logits_get_no_gradient(llama):
    """The embedding of a token that only ever comes last, as a target, is never an input."""
    model = llama(tie_word_embeddings=False)
    ids = np.array([3, 4, 5, 6, 22])
    episode = an_episode(prompt_len=3, sampled=2, token_ids=ids)
    gradient_of(model, [scored(episode)], ["outcome"])
    assert model.model.embed_tokens.weight.grad[22].abs().max() == 0
    assert model.lm_head.weight.grad[22].abs().max() > 0


@pytest.mark.parametrize(("advantage", "direction"), [(1.0, 1), (-1.0, -1)])
def test_a_step_raises_praised_tokens_and_lowers_blamed_ones(llama, advantage, direction):
    model = llama()
    batch = allocate([scored(an_episode(sampled=5), advantage=advantage)], {"outcome": Share(coef=1.0)})
    it = learner(model, ["outcome"], learning_rate=lambda step: 1e-3)
    before = it.learn(batch).facts[0].student_logp
    after = it.learn(batch).facts[0].student_logp
    assert direction * (after - before).sum() > 0


def test_a_step_of_distillation_moves_each_token_towards_the_teacher(llama):
    model = llama()
    episode = an_episode(sampled=4)
    start = gradient_of(llama(), [scored(episode)], ["outcome"])[2][0].student_logp
    wanted = start + np.array([2, -2, 2, -2])
    it = learner(model, ["distill"], learning_rate=lambda step: 1e-3)
    batch = allocate([scored(episode, teacher_logp=wanted)], {"distill": Share(coef=1.0)})
    it.learn(batch)
    after = it.learn(batch).facts[0].student_logp
    assert (np.sign(after - start) == [1, -1, 1, -1]).all()


def test_a_teacher_that_is_the_student_gives_zero_gradient(llama):
    episode = an_episode(sampled=6)
    own = gradient_of(llama(), [scored(episode)], ["outcome"])[2][0].student_logp
    _, grad, _ = gradient_of(llama(), [scored(episode, teacher_logp=own)], ["distill"])
    assert grad.abs().max() < 1e-6


def test_a_non_finite_loss_stops_before_the_optimizer_and_saves_the_batch(llama):
    model, saved = llama(), []
    before = {k: v.clone() for k, v in model.state_dict().items()}
    broken = scored(an_episode(sampled=3), teacher_logp=[np.nan, -1, -1])
    it = learner(model, ["distill"], save_batch=lambda batch, reason: saved.append(batch) or "failed_batch.npz")
    with pytest.raises(NonFiniteLoss, match=r"loss nan .* not stepped; the batch is in failed_batch.npz"):
        it.learn(allocate([broken], {"distill": Share(coef=1.0)}))
    assert len(saved) == 1 and it.num_steps_done == 0
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_gradients_are_clipped_to_the_norm_and_reported_before_clipping(llama):
    it = learner(llama(), ["outcome"], adam=AdamSettings(max_grad_norm=1e-3))
    update = it.learn(allocate(a_batch(), {"outcome": Share(coef=100.0)}))
    after = torch.stack([p.grad.norm() for p in it.parameters if p.grad is not None]).norm()
    assert update.grad_norm > 1 and float(after) == pytest.approx(1e-3, rel=1e-3)


def test_a_learner_restored_from_its_state_continues_identically(llama):
    batch = allocate(a_batch(), shares(["outcome"]))
    one, two = learner(llama(), ["outcome"]), learner(llama(), ["outcome"])
    one.learn(batch)
    two.model.load_state_dict(one.model.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert one.learn(batch).loss == two.learn(batch).loss
    assert all(torch.equal(a, b) for a, b in zip(one.parameters, two.parameters, strict=True))
