"""Token sequences of many lengths as few rectangles with little padding. The one place that shifts ids against scores.

Shape suffixes:  B = rows of a micro-batch,  L = its length,  N = chosen (scored) positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

OVERHEAD_TOKENS = 384
"""What one more forward and backward pass costs, in tokens of padding it must save to be worth it (measured on a
1 M-parameter model on one core: 4 ms of fixed cost at about 90,000 tokens a second)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSequence:
    """One sequence and the tokens of it to score."""

    ids: NDArray[np.int64]
    """[T]"""
    chosen: NDArray[np.int64]
    """[n] positions t >= 1, ascending: log p(ids[t] | ids[:t]) is wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """A rectangle of ids and where its scored tokens are."""

    members: tuple[int, ...]
    """Numbers of the sequences in the caller's list, in row order."""
    ids_BL: Tensor
    attention_mask_BL: Tensor | None
    """None when right-padded: causal attention never looks at what comes after, so no mask is needed."""
    position_ids_BL: Tensor | None
    rows_N: Tensor
    """Flat index (row * L + column) of the position whose output predicts each chosen token."""
    targets_N: Tensor
    """The chosen tokens."""
    counts: tuple[int, ...]
    """Chosen tokens per row: N is their sum."""
    num_padding: int


def partition(lengths: Sequence[int], *, max_tokens: int, overhead: int = OVERHEAD_TOKENS) -> list[list[int]]:
    """Group sequences so that padded positions plus `overhead` per group are fewest, with no group above `max_tokens`.

    Exact: dynamic programming over the lengths in order. A sequence longer than `max_tokens` gets a group of its own.

    >>> partition([4, 100, 4, 100], max_tokens=1000, overhead=10)
    [[0, 2], [1, 3]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    cost = [0.0] + [float("inf")] * len(order)
    start_of = [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        widest = max(lengths[order[end - 1]], 1)
        first = max(0, end - max(max_tokens // widest, 1))
        for start in range(first, end):
            candidate = cost[start] + widest * (end - start) + overhead
            if candidate < cost[end]:
                cost[end], start_of[end] = candidate, start
    groups: list[list[int]] = []
    end = len(order)
    while end > 0:
        groups.append(order[start_of[end] : end])
        end = start_of[end]
    return groups[::-1]


def pack(
    sequences: Sequence[TokenSequence],
    *,
    max_tokens: int,
    pad_id: int = 0,
    side: Literal["right", "left"] = "right",
    device: str | torch.device = "cpu",
) -> list[MicroBatch]:
    """Micro-batches that hold each sequence with chosen tokens once, up to its last needed input.

    Raises:
        ValueError: a chosen position is 0 (nothing comes before it) or beyond the sequence.
    """
    used = [i for i, s in enumerate(sequences) if len(s.chosen)]
    for i in used:
        chosen = sequences[i].chosen
        if chosen[0] < 1 or chosen[-1] >= len(sequences[i].ids):
            raise ValueError(
                f"pack: chosen positions of sequence {i} must lie in 1..{len(sequences[i].ids) - 1}, "
                f"got {chosen[0]}..{chosen[-1]}"
            )
    inputs = [int(sequences[i].chosen[-1]) for i in used]  # the last chosen token itself is no input
    groups = partition(inputs, max_tokens=max_tokens)
    return [_rectangle([used[i] for i in group], sequences, pad_id, side, device) for group in groups]


def _rectangle(
    members: list[int], sequences: Sequence[TokenSequence], pad_id: int, side: str, device: str | torch.device
) -> MicroBatch:
    lengths = [int(sequences[i].chosen[-1]) for i in members]
    width = max(lengths)
    ids = np.full((len(members), width), pad_id, np.int64)
    mask = np.zeros((len(members), width), np.int64)
    rows, targets = [], []
    for row, (i, length) in enumerate(zip(members, lengths, strict=True)):
        offset = width - length if side == "left" else 0
        ids[row, offset : offset + length] = sequences[i].ids[:length]
        mask[row, offset : offset + length] = 1
        rows.append(row * width + offset + sequences[i].chosen - 1)
        targets.append(sequences[i].ids[sequences[i].chosen])
    needs_mask = side == "left"
    positions = np.clip(mask.cumsum(1) - 1, 0, None)
    return MicroBatch(
        members=tuple(members),
        ids_BL=torch.from_numpy(ids).to(device),
        attention_mask_BL=torch.from_numpy(mask).to(device) if needs_mask else None,
        position_ids_BL=torch.from_numpy(positions).to(device) if needs_mask else None,
        rows_N=torch.from_numpy(np.concatenate(rows)).to(device),
        targets_N=torch.from_numpy(np.concatenate(targets)).to(device),
        counts=tuple(len(sequences[i].chosen) for i in members),
        num_padding=int(mask.size - mask.sum()),
    )
