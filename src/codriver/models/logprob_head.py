"""Log-prob and entropy of chosen tokens, without a [tokens x vocabulary] tensor for the whole batch.

The decoder runs once over a micro-batch; the output head runs over the chosen positions only, a chunk of rows at a
time, and each chunk's logits are recomputed in the backward pass instead of being kept.

Shape suffixes:  B, L, N as in `packing`,  H = hidden size,  V = vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from codriver.errors import InputError
from codriver.models.packing import MicroBatch

Head = Callable[[Tensor], Tensor]
"""hidden_NH -> logits_NV in float32 (float64 stays float64)."""

Temperature = float | Tensor
"""One for all rows, or [N]."""

PROBE_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}


def causal_lm(model: nn.Module) -> Any:
    """The transformers model inside a peft wrapper, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    return inner() if inner is not None else model


def hidden_states(model: nn.Module, batch: MicroBatch) -> Tensor:
    """Last hidden states of the positions that predict the chosen tokens: [N, H], with gradient."""
    decoder = causal_lm(model).base_model
    mask = {} if batch.attention_mask_BL is None else {"attention_mask": batch.attention_mask_BL}
    if batch.position_ids_BL is not None:
        mask["position_ids"] = batch.position_ids_BL
    hidden_BLH: Tensor = decoder(input_ids=batch.ids_BL, use_cache=False, **mask).last_hidden_state
    return hidden_BLH.flatten(0, 1).index_select(0, batch.rows_N)


def output_head(model: nn.Module, vocab_size: int) -> Head:
    """The model's output head over its first `vocab_size` ids: rows beyond are padding and hold no probability."""
    lm = causal_lm(model)
    layer = lm.get_output_embeddings()
    cap = getattr(lm.config, "final_logit_softcapping", None)

    def head(hidden_NH: Tensor) -> Tensor:
        logits_NV: Tensor = layer(hidden_NH)[:, :vocab_size]
        logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        return torch.tanh(logits_NV / cap) * cap if cap else logits_NV

    return head


def chosen_logp(
    hidden_NH: Tensor, head: Head, targets_N: Tensor, *, temperature: Temperature = 1.0, chunk_rows: int = 4096
) -> tuple[Tensor, Tensor]:
    """log p(target) and the entropy of p, with p = softmax(logits / temperature).

    Args:
        hidden_NH:   carries gradient if the student's.
        temperature: of the sampling distribution, one or [N]; > 0.
        chunk_rows:  rows of logits that exist at a time; the result does not depend on it.
    Returns:
        (logp_N, entropy_N) in nats, float32 (float64 for a float64 model). logp carries gradient, entropy does not.
    Raises:
        ValueError: temperature <= 0, or hidden and targets differ in length.
    """
    if not (bool((temperature > 0).all()) if isinstance(temperature, Tensor) else temperature > 0):
        raise ValueError(f"chosen_logp: temperature must be above 0, got {temperature}")
    if len(hidden_NH) != len(targets_N):
        raise ValueError(
            f"chosen_logp: expected one target per row, got {len(hidden_NH)} rows, {len(targets_N)} targets"
        )

    def one_chunk(hidden: Tensor, targets: Tensor, rows_temperature: Temperature) -> tuple[Tensor, Tensor]:
        logp = _divided(head(hidden), rows_temperature).log_softmax(-1)
        with torch.no_grad():
            entropy = -(logp.exp() * logp).sum(-1)
        return logp.gather(-1, targets[:, None]).squeeze(-1), entropy

    if len(hidden_NH) <= chunk_rows:
        return one_chunk(hidden_NH, targets_N, temperature)
    parts = []
    rows = (torch.split(hidden_NH, chunk_rows), torch.split(targets_N, chunk_rows))
    for chunk in zip(*rows, _split(temperature, chunk_rows, len(hidden_NH)), strict=True):
        keep = torch.is_grad_enabled() and chunk[0].requires_grad
        parts.append(checkpoint(one_chunk, *chunk, use_reentrant=False) if keep else one_chunk(*chunk))
    logp, entropy = zip(*parts, strict=True)
    return torch.cat(logp), torch.cat(entropy)


@torch.no_grad()
def require_known_head(model: nn.Module, *, vocab_size: int, name: str) -> None:
    """Compare the head used here with the model's own logits on a few ids.

    Raises:
        InputError: they differ: the architecture scales its logits in a way that this file does not know, and every
            log-prob of a run would be silently wrong.
    """
    lm = causal_lm(model)
    ids = torch.arange(8, device=lm.device)[None] % vocab_size
    theirs = lm(input_ids=ids, use_cache=False).logits[0, :, :vocab_size]
    ours = output_head(model, vocab_size)(lm.base_model(input_ids=ids, use_cache=False).last_hidden_state[0])
    tolerance = PROBE_TOLERANCE.get(theirs.dtype, 0.1)
    gap = float((theirs.to(ours.dtype) - ours).abs().max())
    if not gap <= tolerance:
        raise InputError(
            f"{name}: logits of {type(lm).__name__} differ by {gap:.2g} from hidden states times output head; "
            f"this architecture transforms its logits in a way codriver does not know yet, choose another model"
        )


Value = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(student_logp_NV, teacher_logp_NV, ids_N) -> [N]: a divergence of each position; gradient through the student."""


def over_distributions(
    value: Value,
    hidden_NH: Tensor,
    head: Head,
    teacher_hidden_NH: Tensor,
    teacher_head: Head,
    ids_N: Tensor,
    *,
    temperature: Temperature = 1.0,
    teacher_temperature: Temperature = 1.0,
    chunk_rows: int = 4096,
) -> Tensor:
    """`value` of the whole next-token distributions of both sides, a chunk of rows at a time: [N].

    Both distributions are rebuilt from last hidden states, in the forward and again in the backward pass, so that
    neither side ever has a [tokens x vocabulary] tensor for the whole batch. The teacher's side carries no gradient.
    """

    def one_chunk(
        hidden: Tensor, teacher_hidden: Tensor, ids: Tensor, scale: Temperature, teacher_scale: Temperature
    ) -> Tensor:
        student_logp = _divided(head(hidden), scale).log_softmax(-1)
        with torch.no_grad():
            teacher_logits = _divided(teacher_head(teacher_hidden), teacher_scale)
            teacher_logp = teacher_logits.log_softmax(-1).to(student_logp.dtype)
        return value(student_logp, teacher_logp, ids)

    parts = []
    rows = [torch.split(x, chunk_rows) for x in (hidden_NH, teacher_hidden_NH, ids_N)]
    scales = [_split(x, chunk_rows, len(hidden_NH)) for x in (temperature, teacher_temperature)]
    for chunk in zip(*rows, *scales, strict=True):
        keep = torch.is_grad_enabled() and chunk[0].requires_grad and len(hidden_NH) > chunk_rows
        parts.append(checkpoint(one_chunk, *chunk, use_reentrant=False) if keep else one_chunk(*chunk))
    return torch.cat(parts)


def _divided(logits_NV: Tensor, temperature: Temperature) -> Tensor:
    if isinstance(temperature, Tensor):
        return logits_NV / temperature.to(logits_NV)[:, None]
    return logits_NV if temperature == 1.0 else logits_NV / temperature


def _split(temperature: Temperature, chunk_rows: int, num_rows: int) -> Sequence[Temperature]:
    if isinstance(temperature, Tensor):
        return torch.split(temperature, chunk_rows)
    return [temperature] * -(-num_rows // chunk_rows)
