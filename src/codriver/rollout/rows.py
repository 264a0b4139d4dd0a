"""How each running completion draws, what it has drawn, and when it ends."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codriver.episode import FinishReason
from codriver.rollout.draw import UNIFORM_BLOCK, Drawn, uniforms
from codriver.rollout.protocol import Completion, Live, Request

_NO_TOKEN = -1
_TAIL_MARGIN = 4  # tokens before a stop string: a decoder may strip or garble the first characters of what it is given


class StopStrings:
    """Finds stop strings at the end of a growing completion by decoding a few of its last tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._text: dict[int, str] = {}

    def found(self, token_ids: NDArray[np.int64], strings: tuple[str, ...]) -> str:
        """The stop string that the last token completed; empty if none. Of several, the one that begins first.

        A string may span tokens and begin or end inside one. Each token is taken to add at least one byte of text.
        """
        if not self._may_complete(int(token_ids[-1]), strings):
            return ""
        tail = max(len(s.encode()) for s in strings) + _TAIL_MARGIN
        text = self._decode(token_ids[-tail:].tolist())
        starts = [(at, -len(s), s) for s in strings if (at := text.find(s)) >= 0]
        return min(starts)[2] if starts else ""

    def _may_complete(self, token_id: int, strings: tuple[str, ...]) -> bool:
        """False when the token cannot hold the last character of any string, which spares decoding the tail."""
        if token_id not in self._text:
            # Twice: what a decoder strips from the start of a text (a space) shows in the second.
            self._text[token_id] = self._decode([token_id, token_id])
        text = self._text[token_id]
        return "\ufffd" in text or any(s[-1] in text for s in strings)


class Rows:
    """What is known of each slot, as arrays [S] that one step reads and writes whole. Live rows come first."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.num = 0
        self._requests: list[Request | None] = [None] * num_slots
        self.last = np.zeros(num_slots, np.int64)  # the token to feed next, at `position`
        self.position = np.zeros(num_slots, np.int64)
        self.count = np.zeros(num_slots, np.int64)
        self.limit = np.zeros(num_slots, np.int64)
        self._reported = np.zeros(num_slots, np.int64)
        self._asks_each_token = np.zeros(num_slots, np.bool_)  # has stop strings
        self.temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._top_p = np.ones(num_slots, np.float64)
        self._min_p = np.zeros(num_slots, np.float64)
        self._uniforms = np.zeros((num_slots, UNIFORM_BLOCK))
        self._stop_ids = np.full((num_slots, 1), _NO_TOKEN, np.int64)
        # What is kept of each token. Untouched until written: a large max_length costs memory only when it is used.
        shape = (num_slots, max_length)
        self._tokens, self._versions = np.empty(shape, np.int64), np.empty(shape, np.int64)
        self._logp, self._kept_logp = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def request(self, row: int) -> Request:
        request = self._requests[row]
        assert request is not None, "only live rows are asked for"
        return request

    def tokens(self, row: int) -> NDArray[np.int64]:
        return self._tokens[row, : self.count[row]]

    def last_logp(self, row: int) -> float:
        return float(self._logp[row, self.count[row] - 1])

    def live(self) -> list[int]:
        return [row for row in range(self.num) if self._requests[row] is not None]

    def free_slots(self) -> list[int]:
        """Gaps between live rows first."""
        return [slot for slot, request in enumerate(self._requests) if request is None]

    def seat(self, slot: int, request: Request, max_length: int) -> None:
        sampling, num_prompt = request.sampling, len(request.prompt_ids)
        self._requests[slot] = request
        self.num = max(self.num, slot + 1)
        self.last[slot], self.position[slot] = request.prompt_ids[-1], num_prompt - 1
        self.count[slot] = self._reported[slot] = 0
        self.limit[slot] = min(sampling.max_tokens, max_length - num_prompt)
        self.temperature[slot], self._top_k[slot] = sampling.temperature, sampling.top_k
        self._top_p[slot], self._min_p[slot] = sampling.top_p, sampling.min_p
        self._asks_each_token[slot] = bool(sampling.stop_strings)
        if (missing := len(sampling.stop_ids) - self._stop_ids.shape[1]) > 0:
            self._stop_ids = np.pad(self._stop_ids, ((0, 0), (0, missing)), constant_values=_NO_TOKEN)
        self._stop_ids[slot] = _NO_TOKEN
        self._stop_ids[slot, : len(sampling.stop_ids)] = sampling.stop_ids

    def close_gaps(self) -> Iterator[tuple[int, int]]:
        """Move the last rows into gaps; gives (from, to) of each move."""
        gaps = [row for row in range(self.num) if self._requests[row] is None]
        while gaps:
            self.num -= 1
            if self._requests[self.num] is None:
                gaps.pop()
                continue
            source, to = self.num, gaps.pop(0)
            self._requests[to], self._requests[source] = self._requests[source], None
            wide = [self._tokens, self._versions, self._logp, self._kept_logp]
            for array in vars(self).values():
                if isinstance(array, np.ndarray):
                    # Of the wide arrays only what was written: the rest would be touched for nothing.
                    written = slice(0, self.count[source]) if any(array is w for w in wide) else ...
                    array[to, written] = array[source, written]
            yield source, to

    def next_uniforms(self) -> NDArray[np.float64]:
        at = self.count[: self.num] % UNIFORM_BLOCK
        for row in np.flatnonzero(at == 0).tolist():
            self._uniforms[row] = uniforms(self.request(row).seed, int(self.count[row]) // UNIFORM_BLOCK)
        return self._uniforms[np.arange(self.num), at]

    def truncated(self) -> bool:
        top_k, top_p, min_p = self.truncation()
        return bool(top_k.any() or (top_p < 1).any() or min_p.any())

    def truncation(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        return self._top_k[: self.num], self._top_p[: self.num], self._min_p[: self.num]

    def append(self, drawn: Drawn, version: int) -> None:
        rows, at = np.arange(self.num), self.count[: self.num]
        self.last[: self.num] = drawn.token_ids.numpy()
        self._tokens[rows, at], self._versions[rows, at] = self.last[: self.num], version
        self._logp[rows, at], self._kept_logp[rows, at] = drawn.logp.numpy(), drawn.kept_logp.numpy()
        self.count[: self.num] += 1
        self.position[: self.num] += 1

    def maybe_ended(self, drawn: Drawn) -> list[int]:
        """Rows that need a closer look after a token; all others go on."""
        live = slice(0, self.num)
        ended = (self.count[live] >= self.limit[live]) | self._asks_each_token[live]
        ended |= (self._stop_ids[live] == self.last[live, None]).any(1) | ~np.isfinite(drawn.logp.numpy())
        return np.flatnonzero(ended).tolist()

    def take(self, row: int, finish: FinishReason | None, stop_string: str) -> Completion:
        """The completion of a row that ended; its slot is free afterwards."""
        assert finish is not None, "only a row that ended is taken"
        request, num = self.request(row), int(self.count[row]) - (finish == "error")
        self._requests[row] = None
        return Completion(
            id=request.id,
            token_ids=self._tokens[row, :num].copy(),
            logp=self._logp[row, :num].copy(),
            kept_logp=self._kept_logp[row, :num].copy(),
            version=self._versions[row, :num].copy(),
            finish=finish,
            stop_string=stop_string,
        )

    def report(self, row: int) -> Live:
        request, num = self.request(row), int(self.count[row])
        num_new = num - int(self._reported[row])
        self._reported[row] = num
        return Live(id=request.id, prompt_ids=request.prompt_ids, token_ids=self.tokens(row).copy(), num_new=num_new)
