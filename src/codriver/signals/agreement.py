"""Stop listening to a teacher who only agrees: cut a rollout where windows of low KL begin (KAT).

Shape suffixes:  E = rollouts,  T = sampled tokens of a rollout, in order, nothing else between them.
Unit:            nats; `kl` is a KL of the whole position (full, or top-K with a tail), constant.
The rule:        z_t = mean of the last `window` values. After the exemption, `consecutive` windows in a row with
                 z_t < threshold end the rollout; what is trained on ends where the FIRST of them starts.
Use with care:   low KL is also what success looks like late in training; a teacher = student fires at once.
Source:          KAT, arXiv 2606.09471, appendix C: window 64, consecutive 4, fifo 4096, eta 0.3, 512 minima and
                 50 steps of warm-up. The exemption length is not published; ours is the caller's choice.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codriver.signals._inputs import precise, require_same_shape


@dataclass(frozen=True, kw_only=True, slots=True)
class AgreementRule:
    """When agreement is long enough to end a rollout."""

    window: int = 64
    """Tokens per window, >= 1."""
    consecutive: int = 4
    """Windows in a row, one per token, >= 1."""
    exemption: int = 0
    """First tokens that neither count as agreement nor are cut, >= 0."""

    def __post_init__(self) -> None:
        if self.window < 1 or self.consecutive < 1 or self.exemption < 0:
            raise ValueError(f"AgreementRule: expected window, consecutive >= 1 and exemption >= 0, got {self}")


def windowed_kl(kl: Tensor, window: int) -> Tensor:
    """The mean of the last `window` values at every token; +inf where there are fewer.

        z_t = (1 / W) sum_{i = t-W+1 .. t} kl_i

    Args:    kl: [..., T], constant.   Returns: [..., T].   Raises: ValueError: window < 1.
    >>> windowed_kl(torch.tensor([1.0, 3.0, 5.0]), 2)
    tensor([inf, 2., 4.])
    """
    if window < 1:
        raise ValueError(f"windowed_kl: the window must be >= 1, got {window}")
    kl = precise(kl.detach())
    young = torch.full_like(kl[..., : window - 1], math.inf)
    if kl.shape[-1] < window:
        return torch.full_like(kl, math.inf)
    return torch.cat([young, kl.unfold(-1, window, 1).mean(-1)], dim=-1)


def agreement_end(
    kl_ET: Tensor, length_E: Tensor, *, threshold: float | None, rule: AgreementRule
) -> tuple[Tensor, Tensor]:
    """Where finished rollouts would have been cut: the streaming `AgreementDetector` for a whole batch at once.

    Args:    kl_ET: padded on the right; padding is never read.   length_E: sampled tokens of each rollout.
             threshold: nats; None cuts nothing.
    Returns: (effective_E, generated_E), int64: train on tokens < effective; generation would have stopped at generated.
             Both are the length where the rule does not fire.  exemption <= effective <= generated where it does.
    Raises:  ValueError: shapes disagree.
    >>> kl = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    >>> agreement_end(kl, torch.tensor([6]), threshold=0.5, rule=AgreementRule(window=2, consecutive=2))
    (tensor([2]), tensor([5]))
    """
    if kl_ET.shape[:-1] != length_E.shape:
        raise ValueError(
            f"agreement_end: expected [E, T] and [E], got {tuple(kl_ET.shape)} and {tuple(length_E.shape)}"
        )
    if threshold is None or kl_ET.shape[-1] < rule.window + rule.consecutive - 1:
        return length_E.clone(), length_E.clone()
    at_T = torch.arange(kl_ET.shape[-1], device=kl_ET.device)
    low_ET = (windowed_kl(kl_ET, rule.window) < threshold) & (at_T >= rule.exemption) & (at_T < length_E[:, None])
    fires_ET = low_ET.unfold(-1, rule.consecutive, 1).all(-1)  # index: token of the first low window
    first_E = fires_ET.int().argmax(-1)
    effective_E = (first_E - rule.window + 1).clamp(min=rule.exemption)
    fired_E = fires_ET.any(-1)
    return torch.where(fired_E, effective_E, length_E), torch.where(fired_E, first_E + rule.consecutive, length_E)


def window_minimum(kl_ET: Tensor, length_E: Tensor, *, window: int) -> Tensor:
    """The lowest window of each rollout, to feed `WindowMinima`; +inf where the rollout is shorter than a window.

    Feed it from ALL rollouts, cut ones included: from survivors alone the threshold ratchets up.
    >>> window_minimum(torch.tensor([[4.0, 2.0, 0.0, 0.0]]), torch.tensor([3]), window=2)       # 3, 1, padding
    tensor([1.])
    """
    require_same_shape("window_minimum", kl_E=kl_ET[..., 0], length_E=length_E)
    at_T = torch.arange(kl_ET.shape[-1], device=kl_ET.device)
    return windowed_kl(kl_ET, window).masked_fill(at_T >= length_E[:, None], math.inf).amin(-1)


class WindowMinima:
    """A first-in-first-out memory of window minima; its quantile 1 - eta is the next threshold."""

    def __init__(self, *, size: int = 4096, warmup_minima: int = 512, warmup_steps: int = 50) -> None:
        if not 1 <= warmup_minima <= size:
            raise ValueError(f"WindowMinima: expected 1 <= warmup_minima <= size, got {warmup_minima} and {size}")
        self.warmup_minima, self.warmup_steps = warmup_minima, warmup_steps
        self._values: deque[float] = deque(maxlen=size)

    def push(self, minima_E: Tensor) -> None:
        """Remember the minima of rollouts, oldest out first. Rollouts shorter than a window (+inf) have none."""
        self._values.extend(value for value in minima_E.tolist() if math.isfinite(value))

    def threshold(self, *, eta: float, step: int) -> float | None:
        """Q_{1 - eta} of the memory, in nats; None (cut nothing) during warm-up. eta 1 is the lowest, 0 the highest.

        Raises:  ValueError: eta outside [0, 1].
        >>> memory = WindowMinima(size=4, warmup_minima=2, warmup_steps=0)
        >>> memory.push(torch.tensor([9.0, 1.0, 2.0, 3.0, 5.0]))                       # 9 is out again
        >>> memory.threshold(eta=0.5, step=0)
        2.5
        """
        if not 0 <= eta <= 1:
            raise ValueError(f"WindowMinima.threshold: eta must be in [0, 1], got {eta}")
        if step < self.warmup_steps or len(self._values) < self.warmup_minima:
            return None
        return float(torch.tensor(list(self._values), dtype=torch.float64).quantile(1.0 - eta))

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.clear()
        self._values.extend(float(value) for value in state["values"])


class AgreementDetector:
    """One rollout, token by token, in constant time; tells when to stop generating.

    >>> detector = AgreementDetector(AgreementRule(window=2, consecutive=2), threshold=0.5)
    >>> [detector.step(kl) for kl in (1.0, 1.0, 0.0, 0.0, 0.0)], detector.end
    ([False, False, False, False, True], 2)
    """

    def __init__(self, rule: AgreementRule, *, threshold: float | None) -> None:
        self.rule, self.threshold = rule, threshold
        self.num_tokens = 0
        self.end: int | None = None
        """Train on tokens before this one; None while the rule has not fired."""
        self.minimum = math.inf
        """Lowest window so far, exempt ones included; feed it to `WindowMinima`."""
        self._recent: deque[float] = deque()
        self._num_low = 0

    def step(self, kl: float) -> bool:
        """Take the next token's KL; True when the rollout should stop after this token."""
        self.num_tokens += 1
        self._recent.append(kl)
        if len(self._recent) > self.rule.window:
            self._recent.popleft()
        if len(self._recent) < self.rule.window:
            return False
        mean = math.fsum(self._recent) / self.rule.window  # a running sum would keep the rounding of early spikes
        self.minimum = min(self.minimum, mean)
        if self.threshold is None or self.num_tokens <= self.rule.exemption:
            return False
        self._num_low = self._num_low + 1 if mean < self.threshold else 0
        if self._num_low < self.rule.consecutive:
            return False
        first_window_start = self.num_tokens - self.rule.consecutive - self.rule.window + 1
        self.end = max(first_window_start, self.rule.exemption)
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"num_tokens": self.num_tokens, "end": self.end, "minimum": self.minimum,
                "recent": list(self._recent), "num_low": self._num_low}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_tokens, self.end, self.minimum = state["num_tokens"], state["end"], state["minimum"]
        self._recent, self._num_low = deque(state["recent"]), state["num_low"]
