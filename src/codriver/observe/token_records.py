"""Token and episode tables of a step, as Parquet: what was sampled, what each signal said, why a weight is zero."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from codriver.episode import ZERO_REASONS, Allocated, TokenFacts, Update


def write_records(
    root: Path, step: int, batch: Sequence[Allocated], update: Update, *, max_episodes: int, learner_version: int
) -> None:
    """`episodes/step_....parquet` and `tokens/step_....parquet` of at most `max_episodes`, evenly from all groups."""
    chosen = sorted({int(i) for i in np.linspace(0, len(batch) - 1, min(max_episodes, len(batch)))})
    for kind, rows in (
        ("episodes", [_episode_row(step, batch[i]) for i in chosen]),
        ("tokens", [row for i in chosen for row in _token_rows(step, batch[i], update.facts[i], learner_version)]),
    ):
        folder = root / kind
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".step_{step:05d}.tmp"
        pq.write_table(pa.Table.from_pylist(rows), temporary)
        temporary.rename(folder / f"step_{step:05d}.parquet")


def _episode_row(step: int, episode: Allocated) -> dict[str, Any]:
    return {
        "step": step,
        "episode_id": episode.id,
        "prompt_id": episode.prompt.id,
        "group": episode.group,
        "task": episode.prompt.task,
        "author": episode.author,
        "prompt": episode.prompt.messages[-1].content,
        "completion": episode.text,
        "reference": episode.prompt.reference,
        "verdict": episode.verdict.label,
        "reward": episode.verdict.reward,
        "detail": episode.verdict.detail,
        "finish": episode.finish,
        "num_sampled": episode.num_sampled,
        "token_ids": episode.token_ids.tolist(),
    }


def _token_rows(step: int, episode: Allocated, facts: TokenFacts, learner_version: int) -> list[dict[str, Any]]:
    positions = np.flatnonzero(episode.trainable)
    view = episode.teacher
    prefix = hashlib.sha256(episode.token_ids[: positions[0]].tobytes()) if len(positions) else hashlib.sha256()
    rows = []
    for n, t in enumerate(positions.tolist()):
        row: dict[str, Any] = {
            "step": step,
            "episode_id": episode.id,
            "prompt_id": episode.prompt.id,
            "group": episode.group,
            "task": episode.prompt.task,
            "teacher": episode.prompt.teacher,
            "turn": int(episode.turn[t]),
            "position": t,
            "token_id": int(episode.token_ids[t]),
            "policy_version": int(episode.policy_version[t]),
            "learner_version": learner_version,
            "prefix_hash": prefix.hexdigest()[:16],
            "trainable": True,
            "behaviour_logp": float(episode.behaviour_logp[t]),
            "student_logp": float(facts.student_logp[n]),
            "student_entropy": float(facts.student_entropy[n]),
            "teacher_logp": float(view.logp[n]) if view else None,
            "teacher_entropy": float(view.entropy[n]) if view else None,
            "reference_logp": float(episode.reference_logp[n]) if episode.reference_logp is not None else None,
            "divergence": float(facts.student_logp[n] - view.logp[n]) if view else None,
            "outcome_advantage": episode.outcome_advantage,
            "verdict": episode.verdict.label,
            "reward": episode.verdict.reward,
        }
        for signal, share in episode.weights.items():
            row[f"weight_{signal}"] = float(share.weight[n])
        row["zero_reason"] = "; ".join(
            f"{signal}: {ZERO_REASONS[share.zero_reason[n]]}"
            for signal, share in episode.weights.items()
            if share.zero_reason[n]
        )
        rows.append(row)
        prefix.update(episode.token_ids[t : t + 1].tobytes())
    return rows
