"""Continuous batching over any transformers causal LM, on CPU or one GPU, sampling from the live student itself.

One step is one forward over the live rows, one token each. A new completion enters a free slot with the keys and
values of all but the last token of its prompt, and its first step feeds that last token: so a prompt costs one prefill
without the head, shared by all requests for it, and every token comes from the same kind of forward.

Shapes: S slots, R live rows, P prompt length, C max_length.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codriver.episode import FinishReason
from codriver.errors import InputError
from codriver.rollout.draw import Drawn, Truncation, draw_tokens
from codriver.rollout.kv_cache import GROUPED_ATTENTION, DecodeMask, PromptCache, PromptKV, SlotCache
from codriver.rollout.protocol import Completion, Monitor, Request
from codriver.rollout.rows import Rows, StopStrings


class TorchEngine:
    """Samples many completions at once; see `protocol.Engine`.

    The same seed, prompt and weights give the same tokens in any batch and slot, up to the rounding of the model's own
    forward, which may depend on the batch's shape (about 1e-6 in float32: a token flips about once in a million).
    A completion that is running while `publish` is called goes on from keys and values of the older weights.
    Not thread-safe: while `step` runs nothing else may use the model.
    """

    def __init__(
        self,
        model: Any,
        *,
        vocab_size: int,
        max_slots: int,
        max_length: int,
        decode: Callable[[Sequence[int]], str] | None = None,
        monitor: Monitor | None = None,
        monitor_every: int = 8,
        prefill_tokens: int = 8192,
    ) -> None:
        """
        Args: model: shared with the learner, which updates it in place.
              vocab_size: ids that may be sampled; padding rows of the head beyond it get no mass.
              max_slots: completions that run at once. max_length: tokens of prompt and completion together.
              decode: token ids to text with replacement characters for broken bytes; only stop strings need it.
              monitor: asked every `monitor_every` steps. prefill_tokens: most positions of one prefill forward.
        """
        sizes = {"vocab_size": vocab_size, "max_slots": max_slots, "max_length": max_length,
                 "monitor_every": monitor_every, "prefill_tokens": prefill_tokens}  # fmt: skip
        if low := {name: size for name, size in sizes.items() if size < 1}:
            raise ValueError(f"TorchEngine: sizes must be at least 1, got {low}")
        self._model, self._config = model, model.config.get_text_config(decoder=True)
        for name, size, key in (("vocab_size", vocab_size, "vocab_size"),
                                ("max_length", max_length, "max_position_embeddings")):  # fmt: skip
            if size > (most := getattr(self._config, key, size)):
                raise InputError(
                    f"TorchEngine: {name} must be at most the model's {key} {most}, got {size}; lower {name}"
                )
        self._vocab_size, self._max_length, self._prefill_tokens = vocab_size, max_length, prefill_tokens
        self._mask = DecodeMask.of(self._config)
        self._cache = SlotCache(num_slots=max_slots, capacity=max_length)
        self._rows = Rows(max_slots, max_length)
        self._queue: OrderedDict[bytes, deque[Request]] = OrderedDict()
        self._pending: set[str] = set()
        self._kept: tuple[bytes, PromptKV] | None = None  # prompt of a group that did not fit as a whole
        self._stop_strings = StopStrings(decode) if decode else None
        self._monitor, self._monitor_every, self._num_steps = monitor, monitor_every, 0
        self._device, self._version = torch.device("cpu"), 0

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all or none. Those of one prompt are seated together, in the order their prompts came."""
        new: set[str] = set()
        for request in requests:
            self._check(request, new)
            new.add(request.id)
        for request in requests:
            key = np.asarray(request.prompt_ids, dtype=np.int64).tobytes()
            self._queue.setdefault(key, deque()).append(request)
        self._pending |= new

    def step(self) -> list[Completion]:
        """Seat waiting requests in free slots, sample one token for each live completion, give those that ended."""
        if not self._pending:
            return []
        self._device = self._model.device  # the learner may have moved the model
        with self._sampling():
            self._seat()
            drawn = self._forward()
        self._num_steps += 1
        rows = self._rows
        rows.append(drawn, self._version)
        ended = {row: self._reason(row) for row in rows.maybe_ended(drawn)}
        done = [rows.take(row, *ended[row]) for row in ended if ended[row][0]]
        for row in (row for row, (reason, _) in ended.items() if reason == "error"):
            self._cache.clear(row)
        if self._monitor is not None and self._num_steps % self._monitor_every == 0:
            done += self._ask(self._monitor)
        self._pending -= {completion.id for completion in done}
        return done

    def publish(self, version: int) -> None:
        """From the next token on, tokens carry `version`. Waiting requests prefill their prompts anew."""
        self._version, self._kept = version, None

    def _check(self, request: Request, new: set[str]) -> None:
        name, prompt, sampling = f"request {request.id}", np.asarray(request.prompt_ids), request.sampling
        if request.id in self._pending or request.id in new:
            raise InputError(
                f"{name}: ids must be unique, got one that is pending already; give each request its own id"
            )
        if prompt.ndim != 1 or len(prompt) < 1:
            raise InputError(
                f"{name}: prompt_ids must be [P] with P >= 1, got {prompt.shape}; give a start token at least"
            )
        if len(prompt) >= self._max_length:
            raise InputError(
                f"{name}: the prompt must be shorter than max_length {self._max_length} to leave room to sample, "
                f"got {len(prompt)} tokens; raise max_length or shorten the prompt"
            )
        if prompt.min() < 0 or prompt.max() >= self._vocab_size:
            raise InputError(f"{name}: prompt ids must be in [0, {self._vocab_size}), got {prompt.min()} to "
                             f"{prompt.max()}; use the tokenizer that belongs to the model")  # fmt: skip
        if "" in sampling.stop_strings or (sampling.stop_strings and self._stop_strings is None):
            raise InputError(
                f"{name}: stop_strings need an engine with decode and must not be empty, got {sampling.stop_strings}; "
                "give TorchEngine decode=tokenizer.decode or use stop_ids"
            )

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Evaluation mode without gradients, with an attention that takes masks per row; all as before afterwards.

        no_grad and not inference_mode: modules may keep tensors they compute (rotary tables) that the learner uses.
        """
        training = [m for m in self._model.modules() if m.training] if self._model.training else []
        attention = self._config._attn_implementation
        if training:
            self._model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._config._attn_implementation = attention
            for module in training:
                module.training = True

    def _use_attention(self, name: str) -> None:
        # A model loaded with eager attention keeps it: some models differ there (soft caps).
        if self._config._attn_implementation not in (name, "eager"):
            self._config._attn_implementation = name

    def _seat(self) -> None:
        """Fill free slots from the queue, then close the gaps that remain."""
        rows = self._rows
        free = rows.free_slots()
        new: list[tuple[bytes, list[Request], list[int]]] = []
        while free and self._queue:
            key, waiting = next(iter(self._queue.items()))
            num = min(len(free), len(waiting))
            new.append((key, [waiting.popleft() for _ in range(num)], free[:num]))
            free = free[num:]
            if not waiting:
                del self._queue[key]
        for _, requests, slots in new:
            for request, slot in zip(requests, slots, strict=True):
                rows.seat(slot, request, self._max_length)
        if new:
            self._use_attention("sdpa")
            self._fill([(key, slots) for key, _, slots in new])
        for source, to in rows.close_gaps():
            self._cache.move(source, to, int(rows.position[to]))

    def _fill(self, groups: list[tuple[bytes, list[int]]]) -> None:
        """Put each prompt but its last token into its slots: prompts of about one length in one forward."""
        kept, self._kept = self._kept, None
        prompts = {key: np.frombuffer(key, dtype=np.int64)[:-1] for key, _ in groups}
        todo = []
        for key, slots in groups:
            if kept is not None and kept[0] == key:
                self._cache.fill(slots, kept[1], [0] * len(slots))
                self._kept = kept if key in self._queue else None
            elif len(prompts[key]):
                todo.append((key, slots))
        todo.sort(key=lambda group: -len(prompts[group[0]]))
        while todo:
            length = len(prompts[todo[0][0]])
            size = max(1, self._prefill_tokens // length)
            chunk, todo = todo[:size], todo[size:]
            states = self._prefill([prompts[key] for key, _ in chunk])
            self._cache.fill([s for _, slots in chunk for s in slots], states,
                             [n for n, (_, slots) in enumerate(chunk) for _ in slots])  # fmt: skip
            for n, (key, _) in enumerate(chunk):
                if key in self._queue:
                    self._kept = (key, states.row(n, len(prompts[key])))

    def _prefill(self, prompts: list[NDArray[np.int64]]) -> PromptKV:
        """Keys and values of prompts, padded on the right: a causal model's real tokens never see the padding."""
        lengths = np.array([len(p) for p in prompts])
        ids = np.zeros((len(prompts), lengths.max()), dtype=np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        cache, ids_NP = PromptCache(), self._tensor(ids)
        positions_NP = torch.arange(ids.shape[1], device=ids_NP.device).expand(ids.shape)
        # One position through the head is the least that every model offers; its logits are not used.
        self._model(
            input_ids=ids_NP, position_ids=positions_NP, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        return cache.take(self._tensor(lengths))

    def _forward(self) -> Drawn:
        """One token for each live row, on the host."""
        rows, live = self._rows, slice(0, self._rows.num)
        self._use_attention(GROUPED_ATTENTION)
        positions_R, length = self._tensor(rows.position[live]), int(rows.position[live].max()) + 1
        self._cache.place(positions_R, length)
        logits_R1V = self._model(
            input_ids=self._tensor(rows.last[live])[:, None],
            position_ids=positions_R[:, None],
            attention_mask=self._mask.build(positions_R, length, self._model.dtype),
            past_key_values=self._cache,
            use_cache=True,
        ).logits
        truncation = Truncation(*map(self._tensor, rows.truncation())) if rows.truncated() else None
        uniforms_R, temperature_R = self._tensor(rows.next_uniforms()), self._tensor(rows.temperature[live])
        drawn = draw_tokens(logits_R1V[:, -1, : self._vocab_size], uniforms_R, temperature_R, truncation)
        # One transfer for all three; ids and float32 are exact in float64.
        return Drawn(*torch.stack([x.double() for x in drawn]).cpu())

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _reason(self, row: int) -> tuple[FinishReason | None, str]:
        """Why a row ended, and its stop string; None when it goes on."""
        rows, sampling = self._rows, self._rows.request(row).sampling
        if not np.isfinite(rows.last_logp(row)):
            return "error", ""
        if int(rows.last[row]) in sampling.stop_ids:
            return "stop", ""
        if sampling.stop_strings and self._stop_strings is not None:
            if text := self._stop_strings.found(rows.tokens(row), sampling.stop_strings):
                return "stop", text
        if rows.count[row] < rows.limit[row]:
            return None, ""
        return ("length" if rows.count[row] == sampling.max_tokens else "context"), ""

    def _ask(self, monitor: Monitor) -> list[Completion]:
        rows = self._rows
        of_id = {rows.request(row).id: row for row in rows.live()}
        keep = monitor([rows.report(row) for row in of_id.values()]) if of_id else {}
        for name, num in keep.items():
            if name not in of_id or not 1 <= num <= rows.count[of_id[name]]:
                raise ValueError(
                    f"monitor: must keep 1 or more tokens of a completion it was shown, got {num} of {name}"
                )
        for name, num in keep.items():
            rows.count[of_id[name]] = num
        return [rows.take(of_id[name], "cut", "") for name in keep]
