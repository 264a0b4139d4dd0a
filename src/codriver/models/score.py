"""Scoring without gradient: what a frozen policy says of given tokens."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from codriver.models.logprob_head import chosen_logp, hidden_states, output_head
from codriver.models.packing import TokenSequence, pack

Scores = tuple[NDArray[np.float32], NDArray[np.float32]]


@torch.no_grad()
def score_tokens(
    model: nn.Module,
    sequences: Sequence[TokenSequence],
    *,
    vocab_size: int,
    temperature: float = 1.0,
    micro_batch_tokens: int = 16384,
    chunk_rows: int = 4096,
) -> list[Scores]:
    """(log-prob, entropy) of each sequence's chosen tokens, in nats, in the order of `sequences`."""
    head = output_head(model, vocab_size)
    empty = np.zeros(0, np.float32)
    out: list[Scores] = [(empty, empty)] * len(sequences)
    device = next(model.parameters()).device
    for batch in pack(sequences, max_tokens=micro_batch_tokens, device=device):
        hidden = hidden_states(model, batch)
        pair = chosen_logp(hidden, head, batch.targets_N, temperature=temperature, chunk_rows=chunk_rows)
        logp, entropy = (part.float().cpu().numpy() for part in pair)
        cuts = np.cumsum(batch.counts)[:-1]
        for i, *scores in zip(batch.members, np.split(logp, cuts), np.split(entropy, cuts), strict=True):
            out[i] = (scores[0], scores[1])
    return out
