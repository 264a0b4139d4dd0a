"""What every signal asks of its inputs: precision, equal shapes, and a teacher without gradient."""

import torch
from torch import Tensor

LOGP_FLOOR = -100.0
"""Nats. A token that is ruled out (log-prob -inf) counts as e^-100, below every float32 probability, so that no
value and no gradient is infinite. Finite log-probs of a language model do not get this low."""

LOG_RATIO_BOUND = 20.0
"""Nats. exp() of a log-ratio is taken within +-20 (5e8): beyond it the gradient is 0 and the value is finite."""


def precise(x: Tensor) -> Tensor:
    """float64 stays; everything else becomes float32 (half precision is never summed)."""
    return x if x.dtype == torch.float64 else x.float()


def floored(logp: Tensor) -> Tensor:
    """`precise`, with ruled-out tokens at `LOGP_FLOOR` and no gradient there."""
    return precise(logp).clamp(min=LOGP_FLOOR)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp within `LOG_RATIO_BOUND`: finite for any finite input, in value and in gradient."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def require_same_shape(caller: str, **tensors: Tensor) -> None:
    """Refuse silent broadcasting: [T] against [1, T] is a misalignment, not a convenience."""
    shapes = [tuple(x.shape) for x in tensors.values()]
    if len(set(shapes)) > 1:
        names = " and ".join(tensors)
        raise ValueError(f"{caller}: {names} must have one shape, got {' and '.join(map(str, shapes))}")


def require_no_gradient(caller: str, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.requires_grad:
            raise ValueError(f"{caller}: {name} carries gradient; detach it where it is computed")


def require_choice(caller: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{caller}: {name} must be one of {', '.join(choices)}; got {value!r}")
