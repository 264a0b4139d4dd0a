"""Scoring without gradient: what a frozen policy says of given tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from codriver.models.logprob_head import Temperature, chosen_logp, hidden_states, output_head
from codriver.models.packing import TokenSequence, pack


class Scores(NamedTuple):
    """Of one sequence's chosen tokens, in order."""

    logp: NDArray[np.float32]
    """[n] nats."""
    entropy: NDArray[np.float32]
    """[n] nats: of the whole next-token distribution."""
    hidden: NDArray[np.float32] | None
    """[n, H] last hidden states; None unless asked for."""


@torch.no_grad()
def score_tokens(
    model: nn.Module,
    sequences: Sequence[TokenSequence],
    *,
    vocab_size: int,
    temperature: float | Sequence[float] = 1.0,
    keep_hidden: bool = False,
    micro_batch_tokens: int = 16384,
    chunk_rows: int = 4096,
) -> list[Scores]:
    """What the model says of each sequence's chosen tokens, in the order of `sequences`.

    Args: temperature: one for all, or one per sequence.
    """
    each = [temperature] * len(sequences) if isinstance(temperature, float | int) else temperature
    head = output_head(model, vocab_size)
    empty = np.zeros(0, np.float32)
    nothing = np.zeros((0, head_width(model)), np.float32) if keep_hidden else None
    out = [Scores(empty, empty, nothing)] * len(sequences)
    device = next(model.parameters()).device
    for batch in pack(sequences, max_tokens=micro_batch_tokens, device=device):
        hidden = hidden_states(model, batch)
        rows = row_temperature([each[i] for i in batch.members], batch.counts, like=hidden)
        pair = chosen_logp(hidden, head, batch.targets_N, temperature=rows, chunk_rows=chunk_rows)
        logp, entropy = (part.float().cpu().numpy() for part in pair)
        kept = hidden.float().cpu().numpy() if keep_hidden else None
        end = 0
        for i, count in zip(batch.members, batch.counts, strict=True):
            part = slice(end, end + count)
            out[i] = Scores(logp[part], entropy[part], None if kept is None else kept[part])
            end += count
    return out


def row_temperature(each: Sequence[float], counts: Sequence[int], *, like: torch.Tensor) -> Temperature:
    """The temperature of each row of a micro-batch whose members have `counts` rows; one number where they agree."""
    if len(set(each)) == 1:
        return each[0]
    return torch.from_numpy(np.repeat(each, counts)).to(like.device)


def head_width(model: nn.Module) -> int:
    """Columns of the output head: the size of a last hidden state."""
    width: int = model.get_output_embeddings().weight.shape[1]  # type: ignore[operator]
    return width
