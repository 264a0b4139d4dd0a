"""Which signal reaches which token, with which weight: the one place where tokens are selected, dropped and divided.

Weights leave here already divided by the signal's own whole-batch count, so `learn` only sums weight x term, and
micro-batches, padding, order and ranks cannot change the gradient.

Takes scored episodes, gives allocated ones. The divisors themselves are `signals.aggregation`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from codriver.episode import ZERO_REASONS, Allocated, Float, Scored, Weights
from codriver.signals.aggregation import constant_weight, sequence_mean_weight, token_mean_weight

Aggregation = Literal["token_mean", "sequence_mean", "constant"]
CODE = {reason: code for code, reason in enumerate(ZERO_REASONS)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How much of one signal, and how its tokens are averaged."""

    coef: float
    aggregation: Aggregation = "token_mean"
    constant_length: int = 0
    """Divisor per completion of `constant` (Dr. GRPO): the maximum completion length."""

    def __post_init__(self) -> None:
        if self.aggregation == "constant" and self.constant_length < 1:
            raise ValueError(f"Share: constant needs constant_length >= 1, got {self.constant_length}")


Absent = Callable[[Scored], str]
"""Why a signal says nothing about an episode (a name of ZERO_REASONS); empty when it does."""

COUNTED_THOUGH_ZERO = frozenset({"group_agrees"})
"""Reasons that leave the episode in the count: its advantage was measured, and it is 0. Leaving these groups out would
raise the step size whenever groups agree. All other reasons mean that nothing was measured."""


def outcome_absent(episode: Scored) -> str:
    return episode.outcome_reason


def teacher_absent(episode: Scored) -> str:
    return episode.teacher_reason


def reference_absent(episode: Scored) -> str:
    return "" if episode.reference_logp is not None else "not_asked"


def never_absent(episode: Scored) -> str:
    return ""


ABSENT: Mapping[str, Absent] = {
    "outcome": outcome_absent,
    "distill": teacher_absent,
    "reference": reference_absent,
    "supervised": never_absent,
}


def allocate(scored: Sequence[Scored], shares: Mapping[str, Share]) -> list[Allocated]:
    """Give every trainable token its weight for every signal in `shares`.

        token_mean      coef / N            N = counted tokens of the whole batch
        sequence_mean   coef / (E n_e)      E = counted episodes, n_e = trainable tokens of the episode
        constant        coef / (E L)        L = constant_length

    A signal that nothing in the batch carries has weight 0 everywhere, never a division by 0.
    """
    for signal in shares:
        if signal not in ABSENT:
            raise ValueError(f"allocate: no signal {signal!r}; known: {', '.join(ABSENT)}")
    columns = {signal: _weights(scored, ABSENT[signal], share) for signal, share in shares.items()}
    return [
        episode.advance(Allocated, weights={signal: column[i] for signal, column in columns.items()})
        for i, episode in enumerate(scored)
    ]


def _weights(scored: Sequence[Scored], absent: Absent, share: Share) -> list[Weights]:
    reasons = [absent(episode) for episode in scored]
    lengths = [episode.num_sampled for episode in scored]
    counted = [n > 0 and (not why or why in COUNTED_THOUGH_ZERO) for n, why in zip(lengths, reasons, strict=True)]
    counted_E = torch.tensor([n if is_in else 0 for n, is_in in zip(lengths, counted, strict=True)])
    weight_E = share.coef * _mean_weight(share, counted_E)
    return [
        _constant(n, 0.0 if why else weight, why)
        for n, weight, why in zip(lengths, weight_E.tolist(), reasons, strict=True)
    ]


def _mean_weight(share: Share, length_E: Tensor) -> Tensor:
    if share.aggregation == "token_mean":
        return token_mean_weight(length_E)
    if share.aggregation == "sequence_mean":
        return sequence_mean_weight(length_E)
    return constant_weight(length_E, divisor=share.constant_length)


def _constant(length: int, weight: float, why: str) -> Weights:
    filled: Float = np.full(length, weight, np.float32)
    return Weights(weight=filled, zero_reason=np.full(length, CODE[why], np.uint8))
