"""Records for tests, made as the loop makes them: every stage through `advance`."""

import numpy as np

from codriver.episode import Allocated, Episode, Message, Prompt, Scored, TeacherView, Verdict, Verified, Weights


def a_prompt(number: int = 0, **changes) -> Prompt:
    values = dict(
        id=f"arithmetic/train/{number}",
        task="arithmetic",
        messages=(Message(role="user", content="1+1="),),
        reference="2",
    )
    return Prompt(**(values | changes))


def an_episode(*, prompt_len: int = 3, sampled: int = 4, seed: int = 0, vocab: int = 23, **changes) -> Episode:
    random = np.random.default_rng(seed)
    length = prompt_len + sampled
    trainable = np.arange(length) >= prompt_len
    values = dict(
        id=f"0/0/{seed}",
        prompt=a_prompt(),
        group="0/0",
        author="student",
        token_ids=random.integers(3, vocab, length),
        trainable=trainable,
        behaviour_logp=np.where(trainable, -1.0, 0.0).astype(np.float32),
        kept_logp=np.zeros(length, np.float32),
        policy_version=np.where(trainable, 0, -1),
        turn=np.where(trainable, 0, -1),
        completions=("1+1=2;#2",),
        finish="stop",
    )
    return Episode(**(values | changes))


def verified(episode: Episode, *, reward: float = 1.0, label: str = "") -> Verified:
    if label == "invalid":
        return episode.advance(Verified, verdict=Verdict.invalid("test"))
    verdict = Verdict(
        label=label or ("correct" if reward > 0 else "incorrect"), reward=reward, parts={"answer": reward}
    )
    return episode.advance(Verified, verdict=verdict)


def scored(episode: Episode, *, advantage: float = 1.0, teacher_logp=None, reference_logp=None, **changes) -> Scored:
    view = None
    if teacher_logp is not None:
        logp = np.asarray(teacher_logp, np.float32)
        view = TeacherView(teacher="expert", version=0, logp=logp, entropy=np.ones_like(logp))
    values = dict(
        outcome_advantage=advantage,
        outcome_reason="",
        teacher=view,
        teacher_reason="" if view else "not_asked",
        reference_logp=reference_logp,
    )
    return verified(episode, reward=float(advantage > 0)).advance(Scored, **(values | changes))


def allocated(record: Scored, **weights) -> Allocated:
    n = record.num_sampled
    shares = {
        name: Weights(weight=np.broadcast_to(np.float32(w), n).copy(), zero_reason=np.zeros(n, np.uint8))
        for name, w in weights.items()
    }
    return record.advance(Allocated, weights=shares)
