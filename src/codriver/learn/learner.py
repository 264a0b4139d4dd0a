"""One optimizer step on a whole batch, micro-batch by micro-batch, with the same gradient however it is cut."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from codriver.episode import Allocated, Episode, TokenFacts, Update
from codriver.errors import NonFiniteLoss
from codriver.learn.objective import Clipping, Term, Tokens, weighted_losses
from codriver.models.logprob_head import (
    Head,
    Value,
    causal_lm,
    chosen_logp,
    hidden_states,
    output_head,
    over_distributions,
)
from codriver.models.packing import MicroBatch, TokenSequence, pack
from codriver.models.score import row_temperature


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamSettings:
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge:
    """What rebuilds a teacher's distributions from the hidden states that it handed over."""

    head: Head
    temperature: float | None
    """None: each episode's own."""


SaveBatch = Callable[[Sequence[Allocated], str], str]
"""Called with a batch that gave a non-finite loss and the reason; returns where it was saved."""


class Learner:
    """The student's weights and their optimizer.

    State (`state_dict`): the optimizer's moments and the number of steps done. The weights belong to the model.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        vocab_size: int,
        terms: Mapping[str, Term],
        learning_rate: Callable[[int], float],
        adam: AdamSettings,
        save_batch: SaveBatch,
        judges: Mapping[str, Judge] = MappingProxyType({}),
        clipping: Clipping | None = None,
        num_iterations: int = 1,
        micro_batch_tokens: int = 16384,
        head_chunk_tokens: int = 4096,
        gradient_checkpointing: bool = False,
    ) -> None:
        self.model, self.vocab_size, self.terms = model, vocab_size, dict(terms)
        self.micro_batch_tokens, self.head_chunk_tokens = micro_batch_tokens, head_chunk_tokens
        self.learning_rate, self.max_grad_norm, self.save_batch = learning_rate, adam.max_grad_norm, save_batch
        self.judges, self.num_iterations, self.clipping = dict(judges), num_iterations, clipping
        self.num_steps_done = 0
        self._num_clipped = np.zeros(3, np.int64)
        disable_dropout(model)
        self.uses_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            causal_lm(model).gradient_checkpointing_enable({"use_reentrant": False})
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in self.parameters if p.ndim >= 2], "weight_decay": adam.weight_decay},
            {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},  # norms and biases
        ]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1.0, betas=adam.betas, fused=True)

    def learn(self, batch: Sequence[Allocated]) -> Update:
        """Accumulate the gradient of the whole batch, clip it, step; `num_iterations` times on the same batch.

        From the second time on the ratio is against the student before the first. The update reports the last loss and
        gradient, and the facts before the first step.

        Raises:
            NonFiniteLoss: before the optimizer moves; the weights are as they were.
        """
        rate = self.learning_rate(self.num_steps_done)
        before: tuple[TokenFacts, ...] | None = None
        for _ in range(self.num_iterations):
            self.optimizer.zero_grad(set_to_none=True)
            self._num_clipped = np.zeros(3, np.int64)
            signal_loss, facts, num_padding = self._accumulate(batch, prox=before)
            before = before or facts
            loss = sum(signal_loss.values())
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
            if not (np.isfinite(loss) and np.isfinite(norm)):
                self._refuse(batch, f"loss {loss}, gradient norm {norm}")
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.num_steps_done += 1
        return Update(
            loss=loss,
            signal_loss=signal_loss,
            grad_norm=norm,
            learning_rate=rate,
            num_tokens=sum(episode.num_sampled for episode in batch),
            num_padding=num_padding,
            facts=before or (),
            clip_frac=self._clip_frac(),
        )

    def _clip_frac(self) -> tuple[float, float] | None:
        low, high, num_reached = self._num_clipped.tolist()
        return (low / num_reached, high / num_reached) if num_reached else None

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "num_steps_done": self.num_steps_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_steps_done = int(state["num_steps_done"])

    def _accumulate(
        self, batch: Sequence[Allocated], *, prox: Sequence[TokenFacts] | None = None
    ) -> tuple[dict[str, float], tuple[TokenFacts, ...], int]:
        head = output_head(self.model, self.vocab_size)
        total = dict.fromkeys(self.terms, 0.0)
        empty = np.zeros(0, np.float32)
        facts = [TokenFacts(student_logp=empty, student_entropy=empty)] * len(batch)
        is_reached = [any(e.weights[signal].weight.any() for signal in self.terms) for e in batch]
        num_padding = 0
        # transformers recomputes activations only in training mode; dropout is off either way.
        self.model.train(self.uses_checkpointing)
        for micro in self._micro_batches(batch, is_reached):
            num_padding += micro.num_padding
            members = [batch[i] for i in micro.members]
            hidden = hidden_states(self.model, micro)
            logp, entropy = self._logp_and_entropy(members, hidden, micro, head)
            _file_facts(facts, micro, logp, entropy)
            tokens = tokens_of(
                members,
                logp,
                prox_logp=[prox[i].student_logp for i in micro.members] if prox else None,
                over_distributions=partial(self._over_distributions, members, hidden, head, micro.targets_N),
            )
            weights = weights_of(members, self.terms, logp)
            losses = weighted_losses(tokens, self.terms, weights)
            if self.clipping and "outcome" in weights:
                reached = weights["outcome"] != 0
                low, high = (int((stopped & reached).sum()) for stopped in self.clipping(tokens))
                self._num_clipped += (low, high, int(reached.sum()))
            whole = torch.stack(list(losses.values())).sum()
            if not torch.isfinite(whole.detach()):
                self._refuse(
                    batch, f"loss {float(whole.detach())} in the micro-batch of {', '.join(e.id for e in members[:3])}"
                )
            whole.backward()  # type: ignore[no-untyped-call]
            for signal, value in losses.items():
                total[signal] += float(value.detach())
        self.model.eval()
        for micro in self._micro_batches(batch, [not it for it in is_reached]):
            num_padding += micro.num_padding
            members = [batch[i] for i in micro.members]
            with torch.no_grad():  # no signal reaches them: measured for the metrics, without a backward pass
                hidden = hidden_states(self.model, micro)
                _file_facts(facts, micro, *self._logp_and_entropy(members, hidden, micro, head))
        return total, tuple(facts), num_padding

    def _micro_batches(self, batch: Sequence[Allocated], wanted: Sequence[bool]) -> list[MicroBatch]:
        """The wanted episodes' trainable tokens; `members` are places in the whole batch."""
        nothing = np.zeros(0, np.int64)
        sequences = [
            TokenSequence(ids=e.token_ids, chosen=np.flatnonzero(e.trainable) if is_wanted else nothing)
            for e, is_wanted in zip(batch, wanted, strict=True)
        ]
        return pack(sequences, max_tokens=self.micro_batch_tokens, device=self.parameters[0].device)

    def _logp_and_entropy(
        self, members: Sequence[Allocated], hidden: Tensor, micro: MicroBatch, head: Head
    ) -> tuple[Tensor, Tensor]:
        """Under the distribution that sampled: at each episode's own temperature."""
        rows = row_temperature([e.temperature for e in members], micro.counts, like=hidden)
        return chosen_logp(hidden, head, micro.targets_N, temperature=rows, chunk_rows=self.head_chunk_tokens)

    def _over_distributions(
        self, members: Sequence[Allocated], hidden: Tensor, head: Head, ids: Tensor, value: Value
    ) -> Tensor:
        """`value` at every token that a teacher judged, each with its own teacher; 0 at the others."""
        out = torch.zeros_like(hidden[:, 0], dtype=torch.promote_types(hidden.dtype, torch.float32))
        owner = np.repeat([e.teacher.teacher if e.teacher else "" for e in members], [e.num_sampled for e in members])
        for name in sorted(set(owner) - {""}):
            judge = self.judges[name]
            rows = torch.from_numpy(np.flatnonzero(owner == name)).to(hidden.device)
            judged = [e for e in members if e.teacher and e.teacher.teacher == name]
            views = [e.teacher.hidden for e in judged if e.teacher]
            counts, own = [e.num_sampled for e in judged], [e.temperature for e in judged]
            of_judge = [judge.temperature or temperature for temperature in own]
            values = over_distributions(
                value,
                hidden[rows],
                head,
                torch.from_numpy(np.concatenate([v for v in views if v is not None])).to(hidden),
                judge.head,
                ids[rows],
                temperature=row_temperature(own, counts, like=hidden),
                teacher_temperature=row_temperature(of_judge, counts, like=hidden),
                chunk_rows=self.head_chunk_tokens,
            )
            out = out.index_put((rows,), values.to(out.dtype))
        return out

    def _refuse(self, batch: Sequence[Allocated], reason: str) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model.eval()
        where = self.save_batch(batch, reason)
        raise NonFiniteLoss(
            f"step {self.num_steps_done}: {reason}. The optimizer was not stepped; the batch is in {where}. "
            f"Lower optimizer.learning_rate, bound the signal (signals.distill.clip), or resume from a checkpoint"
        )


def disable_dropout(model: nn.Module) -> None:
    """Log-probs of the learner must be those of the policy that sampled: no random masks, whatever mode it is in."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def tokens_of(
    members: Sequence[Allocated],
    logp: Tensor,
    *,
    over_distributions: Callable[[Value], Tensor],
    prox_logp: Sequence[np.ndarray] | None = None,
) -> Tokens:
    """The members' trainable tokens, in row order, beside the live log-probs."""

    def column(values: Sequence[Any]) -> Tensor:
        return torch.from_numpy(np.concatenate(values)).to(logp)

    def zeros(episode: Episode) -> Any:
        return np.zeros(episode.num_sampled, np.float32)

    counts = [e.num_sampled for e in members]
    return Tokens(
        logp=logp,
        prox_logp=logp.detach() if prox_logp is None else column(prox_logp),
        behaviour_logp=column([(e.behaviour_logp + e.kept_logp)[e.trainable] for e in members]),
        outcome_advantage=column([np.full(e.num_sampled, e.outcome_advantage, np.float32) for e in members]),
        judged=torch.from_numpy(np.repeat([e.teacher is not None for e in members], counts)).to(logp.device),
        teacher_logp=column([e.teacher.logp if e.teacher else zeros(e) for e in members]),
        teacher_entropy=column([e.teacher.entropy if e.teacher else zeros(e) for e in members]),
        reference_logp=column([zeros(e) if e.reference_logp is None else e.reference_logp for e in members]),
        episode=torch.from_numpy(np.repeat(np.arange(len(members)), counts)).to(logp.device),
        uniform=column([token_uniforms(e) for e in members]),
        over_distributions=over_distributions,
    )


def token_uniforms(episode: Episode) -> np.ndarray:
    """One number in [0, 1) per trainable token, a function of the episode's id alone."""
    key = int.from_bytes(hashlib.sha256(episode.id.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.Philox(key=key)).random(episode.num_sampled, np.float32)


def weights_of(members: Sequence[Allocated], signals: Mapping[str, Any], like: Tensor) -> dict[str, Tensor]:
    return {
        signal: torch.from_numpy(np.concatenate([e.weights[signal].weight for e in members])).to(like)
        for signal in signals
    }


def _file_facts(facts: list[TokenFacts], micro: MicroBatch, logp: Tensor, entropy: Tensor) -> None:
    cuts = np.cumsum(micro.counts)[:-1]
    columns = (np.split(x.detach().float().cpu().numpy(), cuts) for x in (logp, entropy))
    for i, student_logp, student_entropy in zip(micro.members, *columns, strict=True):
        facts[i] = TokenFacts(student_logp=student_logp, student_entropy=student_entropy)
