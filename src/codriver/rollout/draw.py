"""Tokens from logits: one draw per row, each row with its own temperature, truncation and stream of uniforms.

Shapes: R rows, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNIFORM_BLOCK = 256
"""Uniforms are made this many at a time: one call of the generator per completion and block."""
_WORDS_PER_COUNT = 4  # 64-bit words that Philox makes from one value of its counter


class Truncation(NamedTuple):
    """Which tokens may be drawn, per row [R]; every field has a value that switches it off."""

    top_k: Tensor
    """int64, 0 is off."""
    top_p: Tensor
    """float64, 1.0 is off."""
    min_p: Tensor
    """float64, 0.0 is off."""


class Drawn(NamedTuple):
    """One token per row [R]."""

    token_ids: Tensor
    """int64"""
    logp: Tensor
    """float32, nats: log-prob under the distribution the token was drawn from; not finite where logits were not."""
    kept_logp: Tensor
    """float32, nats, <= 0: log of the mass truncation kept; 0.0 exactly where it dropped nothing."""


def uniforms(seed: int, block: int) -> NDArray[np.float64]:
    """The uniforms in [0, 1) for tokens `block * UNIFORM_BLOCK ...` of a completion, a function of these two alone.

    Multiples of 2**-52 at most 1 - 2**-52, so that `u * total` rounds below `total` for every total.
    """
    stream = np.random.Philox(key=seed % 2**128, counter=block * (UNIFORM_BLOCK // _WORDS_PER_COUNT))
    words = np.asarray(stream.random_raw(UNIFORM_BLOCK), dtype=np.uint64)
    return (words >> np.uint64(12)).astype(np.float64) * 2.0**-52


def draw_tokens(
    logits_RV: Tensor, uniforms_R: Tensor, temperature_R: Tensor, truncation: Truncation | None = None
) -> Drawn:
    """Draw by inverting the cumulative distribution, in the order of the ids: the first token whose sum passes u.

        p = softmax(logits / temperature),    q = p on the kept tokens, divided by the kept mass

    Sums are float64, so a token of a large vocabulary keeps its share. Only top-k and top-p sort.
    Temperature 0 is greedy: the most likely token, its log-prob at temperature 1, no truncation.
    Logits of -inf are tokens of probability 0; a row with NaN or +inf gives a `logp` that is not finite.

    Args:    logits_RV: any float dtype; the caller has cut padding ids off.
             uniforms_R: float64 in [0, 1). temperature_R: float32. truncation: None when off for every row.
    >>> logits = torch.tensor([[0.1, 0.2, 0.7]]).log(); one = torch.ones(1)
    >>> [int(draw_tokens(logits, torch.tensor([u]).double(), one).token_ids) for u in (0.05, 0.25, 0.35)]
    [0, 1, 2]
    """
    greedy_R = temperature_R == 0
    scale_R1 = torch.where(greedy_R, 1.0, temperature_R)[:, None]
    logits_RV = logits_RV.float()
    # The maximum goes first: dividing large logits by a small temperature would overflow.
    logp_RV = torch.log_softmax((logits_RV - logits_RV.amax(-1, keepdim=True)).div_(scale_R1), -1)
    weight_RV = logp_RV.exp()
    kept_R = torch.zeros_like(scale_R1[:, 0])
    if truncation is not None:
        keep_RV = _kept(logp_RV, truncation) | greedy_R[:, None]
        kept_R = torch.where(keep_RV, weight_RV.double(), 0.0).sum(-1).log().clamp_(max=0.0).float()
        kept_R = kept_R.masked_fill_(keep_RV.all(-1), 0.0)
        weight_RV = weight_RV * keep_RV
    sums_RV = weight_RV.cumsum(-1, dtype=torch.float64)
    ids_R1 = torch.searchsorted(sums_RV, uniforms_R[:, None] * sums_RV[:, -1:], right=True)
    ids_R1 = ids_R1.clamp_(max=logp_RV.shape[1] - 1)  # out of range only where sums are NaN
    ids_R1 = torch.where(greedy_R[:, None], logp_RV.argmax(-1, keepdim=True), ids_R1)
    return Drawn(ids_R1[:, 0], logp_RV.gather(-1, ids_R1)[:, 0] - kept_R, kept_R)


def _kept(logp_RV: Tensor, truncation: Truncation) -> Tensor:
    """True for tokens that pass top-k, then top-p of what is left (renormalised), then min-p.

    top-k keeps exactly k, top-p the fewest most likely tokens whose mass reaches p; of equally likely tokens the
    lower id goes first. min-p keeps every token of at least `min_p` times the largest probability. The most likely
    token always stays.
    """
    floor_R1 = logp_RV.amax(-1, keepdim=True).double() + truncation.min_p.log()[:, None]
    keep_RV = logp_RV.double() >= floor_R1
    if not bool(((truncation.top_k > 0) | (truncation.top_p < 1)).any()):
        return keep_RV
    sorted_RV, order_RV = logp_RV.sort(dim=-1, descending=True, stable=True)
    top_k_R1, top_p_R1 = truncation.top_k[:, None], truncation.top_p[:, None]
    rank_V = torch.arange(logp_RV.shape[1], device=logp_RV.device)
    top_RV = (rank_V < top_k_R1) | (top_k_R1 == 0)
    mass_RV = torch.where(top_RV, sorted_RV.double().exp(), 0.0)
    before_RV = mass_RV.cumsum(-1) - mass_RV
    top_RV &= (before_RV < top_p_R1 * mass_RV.sum(-1, keepdim=True)) | (top_p_R1 >= 1)
    return keep_RV & torch.zeros_like(keep_RV).scatter_(-1, order_RV, top_RV)
