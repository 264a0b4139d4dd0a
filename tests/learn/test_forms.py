"""Each form through the learner: the same gradient however the batch is cut, nothing to learn from oneself, a teacher
that is approached."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from codriver.allocation import Share, allocate
from codriver.episode import TeacherView
from codriver.learn.learner import AdamSettings, Judge, Learner
from codriver.models.logprob_head import output_head
from codriver.models.packing import TokenSequence, pack
from codriver.models.score import score_tokens
from tests.conftest import tiny_llama
from tests.learn.forms import ALL, DISTILL, term_of
from tests.records import an_episode, scored

NOT_ZERO_AT_THE_TEACHER = {"cross-entropy"}
"""Its value is the teacher's entropy, its gradient is 0 like the others'."""


def view_of(model, episode):
    (scores,) = score_tokens(
        model,
        [TokenSequence(ids=episode.token_ids, chosen=np.flatnonzero(episode.trainable))],
        vocab_size=23,
        keep_hidden=True,
    )
    return TeacherView(teacher="expert", version=0, logp=scores.logp, entropy=scores.entropy, hidden=scores.hidden)


def a_batch(teacher, count=6):
    random = np.random.default_rng(3)
    out = []
    for i in range(count):
        n = int(random.integers(2, 11))
        episode = an_episode(seed=i, prompt_len=int(random.integers(2, 6)), sampled=n, id=f"0/{i}/0", group=f"0/{i}")
        record = scored(
            episode,
            advantage=float(random.normal()),
            teacher_logp=[0.0] * n,
            reference_logp=(random.normal(size=n) - 2).astype(np.float32),
        )
        out.append(
            replace(record, teacher=view_of(teacher, episode))
            if i != 2
            else replace(record, teacher=None, teacher_reason="no_teacher")
        )
    return out


def learner_for(model, teacher, signal, name, **changes):
    judges = {"expert": Judge(head=output_head(teacher, 23), temperature=1.0)}
    settings = dict(
        vocab_size=23,
        terms={signal: term_of(signal, name)},
        learning_rate=lambda step: 1e-2,
        adam=AdamSettings(),
        save_batch=lambda batch, reason: "nowhere",
        judges=judges,
    )
    return Learner(model, **(settings | changes))


def gradient_of(signal, name, records, *, model=None, teacher=None, part=slice(None), order=None, prox=None, **changes):
    model, teacher = model or tiny_llama(), teacher or tiny_llama(seed=9)
    made = allocate(records, {signal: Share(coef=0.5)})
    made = [made[i] for i in order] if order else made[part]
    it = learner_for(model, teacher, signal, name, **changes)
    it.optimizer.zero_grad()
    losses, facts, _ = it._accumulate(made, prox=[prox[i] for i in order] if order and prox else prox)
    return (
        losses[signal],
        torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]),
        facts,
    )


@pytest.mark.parametrize(("signal", "name"), ALL, ids=lambda x: x)
def test_loss_and_gradient_do_not_depend_on_how_the_batch_is_cut(signal, name):
    records = a_batch(tiny_llama(seed=9))
    _, _, facts = gradient_of(signal, name, records)
    # A policy that has moved since: ratios are not 1, so clips and sequence ratios act.
    moved = [
        replace(
            f, student_logp=f.student_logp + np.float32(0.1) * np.sin(np.arange(len(f.student_logp)), dtype=np.float32)
        )
        for f in facts
    ]
    loss, grad, _ = gradient_of(signal, name, records, prox=moved)
    assert grad.abs().max() > 1e-5
    for how in (dict(micro_batch_tokens=1), dict(micro_batch_tokens=40, head_chunk_tokens=3, order=[5, 0, 3, 1, 4, 2])):
        other_loss, other_grad, _ = gradient_of(signal, name, records, prox=moved, **how)
        assert other_loss == pytest.approx(loss, abs=1e-6), how
        torch.testing.assert_close(other_grad, grad, atol=1e-8, rtol=1e-5, msg=str(how))


@pytest.mark.parametrize(("signal", "name"), ALL, ids=lambda x: x)
def test_the_side_of_the_padding_changes_nothing(signal, name, monkeypatch):
    """Left-padded rectangles need a mask and position ids of their own; right-padded ones do not."""
    records = a_batch(tiny_llama(seed=9))
    loss, grad, _ = gradient_of(signal, name, records)
    sides = []

    def pack_left(*args, **options):
        made = pack(*args, side="left", **options)
        sides.extend(m.attention_mask_BL is not None and m.num_padding > 0 for m in made)
        return made

    monkeypatch.setattr("codriver.learn.learner.pack", pack_left)
    other_loss, other_grad, _ = gradient_of(signal, name, records)
    assert any(sides)
    assert other_loss == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(other_grad, grad, atol=1e-7, rtol=1e-4)


def _rank(rank, port, folder):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    records = a_batch(tiny_llama(seed=9))
    out = {}
    for signal, name in ALL:
        _, grad, _ = gradient_of(signal, name, records, part=slice(rank, None, 2))
        dist.all_reduce(grad)  # weights left `allocation` divided by the whole batch: ranks only sum
        out[signal, name] = grad
    if rank == 0:
        torch.save(out, folder / "grads.pt")
    dist.destroy_process_group()


def test_two_ranks_that_sum_have_the_gradient_of_one(tmp_path):
    port = 29600 + os.getpid() % 300
    mp.spawn(_rank, args=(port, tmp_path), nprocs=2, join=True)
    together = torch.load(tmp_path / "grads.pt")
    records = a_batch(tiny_llama(seed=9))
    for signal, name in ALL:
        _, grad, _ = gradient_of(signal, name, records)
        torch.testing.assert_close(together[signal, name], grad, atol=1e-8, rtol=1e-5, msg=f"{signal} {name}")


@pytest.mark.parametrize("name", DISTILL)
def test_a_teacher_that_is_the_student_teaches_nothing(name):
    model = tiny_llama()
    records = a_batch(model)
    loss, grad, _ = gradient_of("distill", name, records, model=model, teacher=tiny_llama())
    # Log-probs and hidden states pass through float32 on their way.
    assert grad.abs().max() < 1e-5
    assert name in NOT_ZERO_AT_THE_TEACHER or abs(loss) < 1e-5


@pytest.mark.parametrize("name", [n for n in DISTILL if "masked" not in n])
def test_steps_bring_the_student_closer_to_the_teacher(name):
    """Closer on the sampled tokens' states: the full reverse KL falls. Off-policy tokens here, so a trend, not a bound."""
    model, teacher = tiny_llama(seed=4, initializer_range=0.4), tiny_llama(seed=9, initializer_range=0.4)
    records = [r for r in a_batch(teacher, count=8) if r.teacher]
    made = allocate(records, {"distill": Share(coef=1.0)})
    measure = learner_for(model, teacher, "distill", "full reverse")

    def distance():
        value, _, _ = measure._accumulate(made)
        measure.optimizer.zero_grad()
        return value["distill"]

    it, before = learner_for(model, teacher, "distill", name), distance()
    for _ in range(15):
        it.learn(made)
    if DISTILL[name].get("form", "sampled") == "sampled" and DISTILL[name].get("gradient") != "direct":
        facts = it.learn(made).facts
        chosen = np.concatenate([np.sign(r.teacher.logp - (-np.log(23))) for r in records])
        now = np.concatenate([f.student_logp for f in facts])
        assert now[chosen > 0].mean() > now[chosen < 0].mean() + 0.5  # what the teacher likes is liked more
    else:
        assert distance() < 0.9 * before


def test_several_steps_on_a_batch_take_their_ratio_against_the_student_before_the_first():
    model, seen = tiny_llama(), []

    def spy(tokens):
        seen.append((tokens.logp.detach().clone(), tokens.prox_logp.clone()))
        return -tokens.logp

    it = Learner(
        model,
        vocab_size=23,
        terms={"supervised": spy},
        learning_rate=lambda s: 0.05,
        adam=AdamSettings(),
        save_batch=lambda b, r: "",
        num_iterations=3,
    )
    it.learn(allocate(a_batch(tiny_llama(seed=9), 2), {"supervised": Share(coef=1.0)}))
    assert torch.equal(seen[0][0], seen[0][1])
    for logp, prox in seen[1:]:
        torch.testing.assert_close(prox, seen[0][0], atol=1e-6, rtol=0)
        assert (logp - prox).abs().max() > 0.01
    assert it.num_steps_done == 1
