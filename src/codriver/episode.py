"""One trajectory, and what is known about it after each stage of the loop.

Each stage returns the next type (`Episode -> Verified -> Scored -> Allocated`), so a missing stage is a type error,
not a None found three rooms later.

Shape suffixes:  T = tokens of the episode (prompt, completions, observations),  K = support,  H = hidden size.
Alignment:       element t of every [T] array concerns token t given the tokens before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Float = NDArray[np.float32]
Bool = NDArray[np.bool_]
Code = NDArray[np.uint8]

FinishReason = Literal["stop", "length", "context", "environment", "cut", "error"]
FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)
VerdictLabel = Literal["correct", "incorrect", "unparseable", "invalid"]
VERDICTS: tuple[str, ...] = get_args(VerdictLabel)
Author = Literal["student", "dataset", "teacher"]
ZERO_REASONS: tuple[str, ...] = (
    "",
    "not_asked",  # the signal's coefficient is 0 for this episode
    "invalid",  # the verifier failed: no outcome is known
    "group_agrees",  # every reward of the group is equal: the outcome cannot tell its members apart
    "no_teacher",  # no teacher is routed to the prompt
    "teacher_failed",  # the teacher's answer did not come, or was not usable
    "rule",  # an allocation rule of the recipe gave weight 0
    "overlong",  # the completion hit its length limit and the recipe masks those
)

StateLabel = Literal["on_path", "recoverable", "irrecoverable", "unknown"]
STATES: tuple[str, ...] = get_args(StateLabel)

Stage = TypeVar("Stage", bound="Episode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a conversation, as the chat template takes it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One problem. Two prompts with the same text are still two prompts: identity is the id, never the tokens."""

    id: str
    """`task/split/number`, the same in every run with the same task settings and seed."""
    task: str
    messages: tuple[Message, ...]
    reference: str
    """What the task's `verify` compares with. Never shown to the student."""
    hint: str = ""
    """Privileged text that only a hinted teacher sees."""
    teacher: str = ""
    """Name of the teacher that judges this prompt; empty for none."""
    level: str = ""
    """Difficulty class for success rates (`operands=5`), where a task never draws the same problem twice."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the functions the student may call, as chat templates take them; empty: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a verifier says of one episode."""

    label: VerdictLabel
    """`invalid` means the verifier itself failed: masked out of every baseline, never scored 0."""
    reward: float
    """Weighted sum of the parts; NaN when invalid, so that using it by mistake is loud."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Named reward parts; None where the check itself failed."""
    detail: str = ""
    """Why, in words: the first wrong step, the missing answer, the verifier's error."""

    def __post_init__(self) -> None:
        if self.label not in VERDICTS:
            raise ValueError(f"Verdict: label must be one of {VERDICTS}, got {self.label!r}")
        if (self.label == "invalid") != bool(np.isnan(self.reward)):
            raise ValueError(f"Verdict: reward must be NaN exactly when invalid, got {self.label}, {self.reward}")

    @classmethod
    def invalid(cls, detail: str) -> "Verdict":
        return cls(label="invalid", reward=float("nan"), detail=detail)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateCheck:
    """What a verifier says of one intermediate state of an episode."""

    turn: int
    """Number of the completion that led to the state: index into `Episode.completions`."""
    start: int
    """First character of that completion that the state is about."""
    stop: int
    """Character behind the last one; `start` <= `stop`."""
    label: StateLabel
    """on_path: as the solution goes. recoverable: wrong, but the episode can still be solved. irrecoverable: it cannot.
    unknown: not judged."""
    constraint: str = ""
    """The constraint that is violated, in words; empty when on path."""

    def __post_init__(self) -> None:
        if self.label not in STATES:
            raise ValueError(f"StateCheck: label must be one of {STATES}, got {self.label!r}")
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"StateCheck: expected 0 <= start <= stop, got {self.start} and {self.stop}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """What the engine and the environment produced; nothing here changes afterwards."""

    id: str
    """`step/prompt/sample`, unique in a run; every error and every token record carries it."""
    prompt: Prompt
    group: str
    """Episodes of one prompt drawn together share it. Never inferred from tokens."""
    author: Author
    """Who wrote the trainable tokens."""
    token_ids: Int
    """[T] prompt, completions and environment replies, in order: the very ids that were sampled."""
    trainable: Bool
    """[T] True where `author` produced the token."""
    behaviour_logp: Float
    """[T] nats: log-prob of the distribution that sampled the token; 0.0 where not sampled."""
    kept_logp: Float
    """[T] nats, <= 0: log of the mass that top-k/top-p/min-p kept, so `behaviour_logp + kept_logp` is the
    log-prob under the whole distribution at the sampling temperature."""
    policy_version: Int
    """[T] version of the weights that sampled the token; -1 where not sampled by the student."""
    turn: Int
    """[T] number of the completion a sampled token belongs to, 0, 1, ...; -1 elsewhere."""
    completions: tuple[str, ...]
    """Text of each completion, without special tokens and without the stop string."""
    finish: FinishReason
    """Why the last completion ended. Comes from the engine, never from the ids; `environment`: the world ended it."""
    observations: tuple[tuple[Message, ...], ...] = ()
    """What the environment answered after each completion but the last; empty for a single turn."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What only the environment knows, for `verify`; `error` says why it failed."""
    temperature: float = 1.0
    """Sampling temperature; every log-prob of the student is of this distribution."""

    def __post_init__(self) -> None:
        _require_one_length(
            self, ("token_ids", "trainable", "behaviour_logp", "kept_logp", "policy_version", "turn"), len(self)
        )
        if self.finish not in FINISH_REASONS:
            raise ValueError(f"episode {self.id}: finish must be one of {FINISH_REASONS}, got {self.finish!r}")
        if len(self) and self.trainable[0]:
            raise ValueError(f"episode {self.id}: the first token has no tokens before it and cannot be trainable")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        """Trainable tokens: what every length metric and length penalty counts."""
        return int(self.trainable.sum())

    @property
    def text(self) -> str:
        """The last completion."""
        return self.completions[-1] if self.completions else ""

    def advance(self, stage: type[Stage], **new: Any) -> Stage:
        """This episode, plus what the next stage learned."""
        return stage(**{f.name: getattr(self, f.name) for f in fields(self)}, **new)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """One judged intermediate state of an episode, placed among its tokens."""

    start: int
    """First token of the episode that the state is about: index into the [T] arrays."""
    stop: int
    """Token behind the last one; `start` < `stop`."""
    label: StateLabel
    constraint: str = ""
    """The violated constraint, in words; empty when on path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified(Episode):
    """An episode and its outcome."""

    verdict: Verdict
    states: tuple[State, ...] = ()
    """In order; empty where the task judges none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherView:
    """What one teacher says of one episode, for the trainable positions only (N of them, in order)."""

    teacher: str
    version: int
    logp: Float
    """[N] nats: log-prob of the episode's own token at the teacher's temperature."""
    entropy: Float
    """[N] nats: of the teacher's next-token distribution."""
    top_ids: Int | None = None
    """[N, K] the teacher's most likely tokens, most likely first; None unless a signal asked for them."""
    top_logp: Float | None = None
    """[N, K] nats: their log-probs, normalised over the whole vocabulary."""
    hidden: NDArray[Any] | None = None
    """[N, H] last hidden states, from which the learner rebuilds the full distribution chunk by chunk."""

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("logp", "entropy")}
        lengths |= {n: len(v) for n in ("top_ids", "top_logp", "hidden") if (v := getattr(self, n)) is not None}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"teacher {self.teacher}: arrays must have one length, got {lengths}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored(Verified):
    """A verified episode and what each signal says of its tokens; numbers only, no gradient."""

    outcome_advantage: float
    """Same for every sampled token; 0.0 when the verdict is invalid or the group agrees."""
    outcome_reason: str
    """Why the outcome signal is absent (`invalid`, `group_agrees`, `not_asked`); empty when it is there."""
    teacher: TeacherView | None
    """None when no teacher judged the episode; `teacher_reason` says why."""
    teacher_reason: str
    """`not_asked`, `no_teacher`, `teacher_failed`; empty when `teacher` is there."""
    reference_logp: Float | None
    """[N] nats: log-prob of each trainable token under the reference policy; None when not asked."""

    def __post_init__(self) -> None:
        # Explicit base: zero-argument super() does not work inside a slots dataclass.
        Verified.__post_init__(self)
        teacher_logp = self.teacher.logp if self.teacher else None
        for name, values in (("teacher", teacher_logp), ("reference", self.reference_logp)):
            if values is not None and len(values) != self.num_sampled:
                raise ValueError(
                    f"episode {self.id}: {name} must score its {self.num_sampled} trainable tokens, got {len(values)}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """One signal's share in one episode, for the trainable positions only."""

    weight: Float
    """[N] already divided by the signal's whole-batch count: `learn` only sums weight x term."""
    zero_reason: Code
    """[N] index into `ZERO_REASONS`: why the weight is zero; 0 where it is not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocated(Scored):
    """A scored episode and the weight of each signal on each token."""

    weights: Mapping[str, Weights]
    """Signal name -> its weights; a signal that is off in the recipe is absent."""

    def __post_init__(self) -> None:
        Scored.__post_init__(self)
        for name, share in self.weights.items():
            if len(share.weight) != self.num_sampled or len(share.zero_reason) != self.num_sampled:
                raise ValueError(
                    f"episode {self.id}: {name} must weigh its {self.num_sampled} trainable tokens, "
                    f"got {len(share.weight)} weights and {len(share.zero_reason)} reasons"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFacts:
    """What the learner saw of one episode's trainable tokens, for metrics and token records."""

    student_logp: Float
    """[N] nats, before this step's update, at the sampling temperature."""
    student_entropy: Float
    """[N] nats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What one optimizer step did."""

    loss: float
    """Sum over signals of weight x term. Near 0 on-policy; its gradient is not."""
    signal_loss: Mapping[str, float]
    grad_norm: float
    """L2 norm before clipping."""
    learning_rate: float
    num_tokens: int
    """Trainable tokens in the batch."""
    num_padding: int
    """Padding positions that were computed."""
    facts: tuple[TokenFacts, ...]
    """One per episode, in the batch's order."""
    clip_frac: tuple[float, float] | None = None
    """Share of the tokens that the outcome reached whose ratio is stopped at the low and at the high bound, in the last
    pass over the batch; None where no outcome reached any."""


def _require_one_length(episode: Episode, names: tuple[str, ...], length: int) -> None:
    lengths = {name: len(getattr(episode, name)) for name in names}
    if any(n != length for n in lengths.values()):
        raise ValueError(f"episode {episode.id}: token arrays must have one length, got {lengths}")
