"""What one step looked like, as named numbers. Pure functions of the batch and the update; `docs/metrics.md` explains
each name.

Shape suffixes:  E = episodes,  N = trainable tokens of the batch.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from codriver.episode import FINISH_REASONS, STATES, VERDICTS, Allocated, Update

Metrics = dict[str, float]
POSITION_BUCKETS = ((0, 16), (16, 64), (64, 256), (256, 1024), (1024, 1 << 40))


def step_metrics(batch: Sequence[Allocated], update: Update) -> Metrics:
    """All metrics of one training step."""
    sampled = [e for e in batch if e.author == "student"]
    metrics = update_metrics(update) | signal_metrics(batch, update) | throughput_counts(batch, update)
    if sampled:
        metrics |= reward_metrics(sampled) | group_metrics(sampled) | completion_metrics(sampled)
        metrics |= state_metrics(sampled)
        metrics |= policy_metrics(batch, update) | teacher_metrics(batch, update)
    return metrics


def update_metrics(update: Update) -> Metrics:
    entropy = np.concatenate([f.student_entropy for f in update.facts]) if update.facts else np.zeros(0)
    metrics = {
        "policy/grad_norm": update.grad_norm,
        "policy/entropy": _mean(entropy),
        "learning_rate": update.learning_rate,
        "loss": update.loss,
    }
    if update.clip_frac:
        metrics["policy/clip_frac_low"], metrics["policy/clip_frac_high"] = update.clip_frac
    return metrics


def signal_metrics(batch: Sequence[Allocated], update: Update) -> Metrics:
    """Per signal: its part of the loss, the share of tokens it reached and its mean weight there (whole batch: 1/N)."""
    metrics: Metrics = {}
    for signal in batch[0].weights if batch else ():
        weight_N = np.concatenate([e.weights[signal].weight for e in batch])
        reached = weight_N != 0
        metrics[f"signal/{signal}/loss"] = update.signal_loss[signal]
        metrics[f"signal/{signal}/token_frac"] = _mean(reached)
        metrics[f"signal/{signal}/weight_mean"] = _mean(weight_N[reached] * len(weight_N))
    return metrics


def throughput_counts(batch: Sequence[Allocated], update: Update) -> Metrics:
    return {
        "tokens/generated": float(sum(e.num_sampled for e in batch if e.author == "student")),
        "tokens/trained": float(update.num_tokens),
        "tokens/padding_frac": update.num_padding / max(update.num_padding + sum(map(len, batch)), 1),
    }


def reward_metrics(batch: Sequence[Allocated]) -> Metrics:
    valid = [e.verdict for e in batch if e.verdict.label != "invalid"]
    rewards = [v.reward for v in valid]
    metrics = {"reward/mean": _mean(rewards), "reward/std": float(np.std(rewards)) if rewards else float("nan")}
    for label in VERDICTS:
        metrics[f"verdict/{label}"] = _mean([e.verdict.label == label for e in batch])
    for part in sorted({name for e in batch for name in e.verdict.parts}):
        values = [e.verdict.parts[part] for e in batch if part in e.verdict.parts]
        known = [v for v in values if v is not None]
        metrics[f"rewards/{part}/mean"] = _mean(known)
        metrics[f"rewards/{part}/std"] = float(np.std(known)) if known else float("nan")
        metrics[f"rewards/{part}/invalid_frac"] = 1 - len(known) / len(values)
    return metrics


def group_metrics(batch: Sequence[Allocated]) -> Metrics:
    """Success within groups. `frac_reward_zero_std` asks whether rewards differ at all, whatever they are scaled by."""
    groups: dict[str, list[Allocated]] = {}
    for episode in batch:
        if episode.verdict.label != "invalid":
            groups.setdefault(episode.group, []).append(episode)
    correct = [np.array([e.verdict.label == "correct" for e in members]) for members in groups.values()]
    rewards = [np.array([e.verdict.reward for e in members]) for members in groups.values()]
    return {
        "group/pass_at_g": _mean([bool(c.any()) for c in correct]),
        "group/all_correct": _mean([bool(c.all()) for c in correct]),
        "group/all_incorrect": _mean([not c.any() for c in correct]),
        "group/reward_std": _mean([float(r.std()) for r in rewards]),
        "frac_reward_zero_std": _mean([bool(r.max() == r.min()) for r in rewards]),
    }


def completion_metrics(batch: Sequence[Allocated]) -> Metrics:
    """Lengths count sampled tokens only, over all turns."""
    lengths = [e.num_sampled for e in batch]
    finishes = [e.finish for e in batch]
    metrics = {
        "completions/mean_length": _mean(lengths),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": _mean([f in ("length", "context") for f in finishes]),
    }
    return metrics | {f"completions/finish/{r}": _mean([f == r for f in finishes]) for r in FINISH_REASONS}


def state_metrics(batch: Sequence[Allocated]) -> Metrics:
    """Shares of the judged states; turns of an episode. Nothing where no task judges states or has several turns."""
    labels = [state.label for e in batch for state in e.states]
    metrics: Metrics = {f"state/{s}": _mean([label == s for label in labels]) for s in STATES} if labels else {}
    if any(e.observations for e in batch):
        metrics["completions/mean_turns"] = _mean([len(e.completions) for e in batch])
    return metrics


def policy_metrics(batch: Sequence[Allocated], update: Update) -> Metrics:
    """How far the learner's policy is from the one that sampled, and from the reference."""
    log_ratio_N = np.concatenate(
        [
            f.student_logp - (e.behaviour_logp + e.kept_logp)[e.trainable]
            for e, f in zip(batch, update.facts, strict=True)
            if e.author == "student"
        ]
    )
    metrics = {
        "policy/kl_behaviour": _mean(np.expm1(log_ratio_N.clip(-20, 20)) - log_ratio_N),
        "policy/ratio_max": float(np.exp(np.abs(log_ratio_N).max(initial=0.0).clip(max=80.0))),
    }
    gaps = [
        f.student_logp - e.reference_logp
        for e, f in zip(batch, update.facts, strict=True)
        if e.reference_logp is not None
    ]
    return metrics | ({"policy/kl_reference": _mean(np.concatenate(gaps))} if gaps else {})


def teacher_metrics(batch: Sequence[Allocated], update: Update) -> Metrics:
    """Sampled KL(student || teacher), i.e. the mean of log pi_theta - log pi_T over sampled tokens, split every way."""
    asked = [(e, f) for e, f in zip(batch, update.facts, strict=True) if e.teacher_reason in ("", "teacher_failed")]
    if not any(e.teacher for e, _ in asked):
        return {}
    gaps: dict[str, list[np.ndarray]] = {}
    entropies: dict[str, list[np.ndarray]] = {}
    tokens: dict[str, int] = {}
    for episode, facts in asked:
        if (view := episode.teacher) is None:
            continue
        gap_N = facts.student_logp - view.logp
        names = [f"teacher/{view.teacher}/kl", f"teacher/kl/task/{episode.prompt.task}"]
        for name in [*names, f"teacher/kl/verdict/{episode.verdict.label}"]:
            gaps.setdefault(name, []).append(gap_N)
        for low, high in POSITION_BUCKETS:
            if len(part := gap_N[low:high]):
                gaps.setdefault(f"teacher/kl/position/{low}", []).append(part)
        entropies.setdefault(view.teacher, []).append(view.entropy)
        tokens[view.teacher] = tokens.get(view.teacher, 0) + len(gap_N)
    metrics = {name: _mean(np.concatenate(values)) for name, values in gaps.items()}
    for teacher, values in entropies.items():
        metrics[f"teacher/{teacher}/entropy"] = _mean(np.concatenate(values))
        metrics[f"teacher/{teacher}/token_frac"] = tokens[teacher] / max(sum(tokens.values()), 1)
        failed = [e for e, _ in asked if e.teacher_reason and e.prompt.teacher == teacher]
        metrics[f"teacher/{teacher}/failed"] = float(len(failed))
    return metrics


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is right, given c of n (Chen et al. 2021, eq. 1).

        1 - C(n - c, k) / C(n, k)

    >>> pass_at_k(4, 1, 4), pass_at_k(4, 1, 1), round(pass_at_k(4, 2, 2), 4)      # 1 - 1/6
    (1.0, 0.25, 0.8333)
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass_at_k: k must be in 1..{num_samples}, got {k}")
    if num_samples - num_correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(num_samples - num_correct + 1, num_samples + 1)))


def sum_timings(rows: Iterable[Mapping[str, float]]) -> Metrics:
    """Total of every `time/` and `tokens/generated` over a run's rows."""
    total: Metrics = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith("time/") or name == "tokens/generated":
                total[name] = total.get(name, 0.0) + value
    return total


def _mean(values: Sequence[float] | Sequence[bool] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
