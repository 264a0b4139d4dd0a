"""The section `signals` of a recipe: `docs/methods.md` says which paper needs which settings."""

from typing import Annotated, Literal

from pydantic import Field

from codriver.recipe.base import AtLeastOne, Count, Fraction, NonNegative, Positive, Section

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


class Overlong(Section):
    """What a completion near or at its length limit gets (DAPO)."""

    mask: bool = False
    """Leave completions that hit the limit out of the outcome signal: their end is unknown, not wrong."""
    buffer: Count = 0
    """The reward falls linearly to -1 more over the last `buffer` tokens before the limit. 0: no penalty."""


class Outcome(Section):
    """RL from the verifier's reward: group-relative advantage and a policy-gradient loss (GRPO and its relatives)."""

    coef: NonNegative = 1.0
    scale: Literal["std", "none", "batch"] = "std"
    """Divide the centred reward by the group's standard deviation, by nothing (Dr. GRPO), or by the batch's."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    loss: Literal["clipped", "cispo"] = "clipped"
    """clipped: PPO's surrogate. cispo: a detached, bounded ratio times log pi; no token loses its gradient."""
    ratio: Literal["token", "sequence"] = "token"
    """Of the clipped loss. sequence: GSPO, with clips around 3e-4."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    clip_high: Positive = 0.28
    """cispo: upper bound of the ratio itself is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound of the loss of tokens with a negative advantage, in advantages; usual 3. null: none."""
    reweight: Literal["none", "distilled_rl", "rlsd"] = "none"
    """The teacher spreads the verifier's credit over the tokens. distilled_rl: in successful episodes. rlsd: sign from
    the verifier, size from the teacher."""
    overlong: Overlong = Overlong()
    aggregation: Aggregation = "token_mean"
    """token_mean: every token of the batch counts the same. sequence_mean: every completion counts the same.
    constant: divided by completions x max_completion_length (Dr. GRPO)."""


class Distill(Section):
    """On-policy distillation: the teacher's judgement of each sampled token, or of each state the student reached."""

    coef: NonNegative = 0.0
    form: Literal["sampled", "full", "top_k"] = "sampled"
    """sampled: the log-ratio of the sampled token. full: a divergence over the whole vocabulary. top_k: over a list."""
    divergence: Literal["reverse", "forward", "jensen_shannon", "skewed_reverse", "skewed_forward", "cross_entropy"] = (
        "reverse"
    )
    """reverse: KL(student || teacher). The skewed ones and cross_entropy need form: full."""
    gradient: Literal["auto", "policy", "direct"] = "auto"
    """policy: a detached advantage. direct: back-propagated. auto: policy for sampled, direct for the others."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """Of form: sampled. k1 with policy: reverse KL. k2 with direct: reverse KL (KDRL). k3 with direct: forward KL."""
    jsd_beta: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Weight of the teacher in the mixture of jensen_shannon (GKD); it vanishes at 0 and 1: use forward and reverse."""
    skew: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the other side mixed into the skewed divergences."""
    temperature_squared: bool = False
    """Multiply a divergence of form: full by temperature squared (Hinton's scaling)."""
    top_k: AtLeastOne = 64
    """Length of the list of form: top_k, of the forward KL of outlier: forward_kl and of entropy_threshold."""
    support: Literal["teacher", "student", "union"] = "teacher"
    """Whose most likely tokens are on the list."""
    with_sampled: bool = False
    """Put the sampled token on the list too: repairs the blind spot of remainder: renormalize."""
    remainder: Literal["renormalize", "tail", "generalized", "stop_gradient"] = "tail"
    """Tokens off the list. renormalize: ignored (local support matching). tail: a bucket. generalized: adds -p + q."""
    bound: Literal["none", "log", "power", "floor"] = "none"
    """Softens large log-ratios. log: sign(A) log(1 + |A|). power: pi_T^a - pi^a. floor: from below (REOPOLD)."""
    bound_power: Annotated[float, Field(gt=0, le=1)] = 0.5
    bound_floor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Mixing share lambda of bound: floor; the floor is log(lambda / (1 - lambda))."""
    clip: Positive | None = None
    """Bound of |log pi_T - log pi_theta|, in nats. null: no bound."""
    discount: Fraction = 0.0
    """Reward-to-go of the log-ratio along the episode; 0: each token its own."""
    length_normalised: bool = False
    """Divide the reward-to-go by the (discounted) number of tokens that remain (MiniLLM)."""
    baseline: Literal["none", "state"] = "none"
    """state: add the state's whole reverse KL, which leaves the expected gradient unchanged (vOPD)."""
    outlier: Literal["none", "mask", "clip", "forward_kl"] = "none"
    """Tokens that the teacher finds far less likely than the student (TrOPD)."""
    trust: Literal["expected", "stochastic"] = "expected"
    """How the chance min(pi_T / pi, 1) decides what is an outlier."""
    outlier_bound: Positive = 2.0
    """Of outlier: clip, in nats."""
    prefix_strength: NonNegative = 0.0
    """Tokens after much disagreement count less (IW-OPD); 0: off, usual 0.5."""
    entropy_threshold: Positive | None = None
    """Add a forward KL where the teacher's entropy is above this, in nats (EOPD, 0.8 for language). null: off."""
    aggregation: Aggregation = "token_mean"

    @property
    def use(self) -> Literal["policy", "direct"]:
        """`gradient` with auto resolved."""
        if self.gradient != "auto":
            return self.gradient
        return "policy" if self.form == "sampled" and self.estimator == "k1" else "direct"

    def idle_keys(self) -> set[str]:
        """Keys that were given and do nothing beside the others."""
        sampled, listed = self.form == "sampled", self.form == "top_k"
        direct = sampled and self.use == "direct"
        wide = listed or self.outlier == "forward_kl" or self.entropy_threshold is not None
        acts = {
            "divergence": not sampled,
            "estimator": sampled,
            "jsd_beta": self.divergence == "jensen_shannon",
            "skew": self.divergence.startswith("skewed"),
            "temperature_squared": self.form == "full",
            "top_k": wide,
            **dict.fromkeys(("support", "with_sampled", "remainder"), listed),
            "bound_power": self.bound == "power",
            "bound_floor": self.bound == "floor",
            "length_normalised": self.discount > 0,
            "trust": self.outlier != "none",
            "outlier_bound": self.outlier == "clip",
        }
        shapes = ("bound", "clip", "discount", "baseline", "outlier", "prefix_strength", "entropy_threshold")
        acts |= dict.fromkeys(shapes, sampled and not direct)
        off = {name for name, field in type(self).model_fields.items() if getattr(self, name) == field.default}
        return {key for key, does_act in acts.items() if not does_act and key in self.model_fields_set - off}

    @property
    def needs_distribution(self) -> bool:
        """Whether the teacher must hand over more than the log-prob of the sampled token."""
        sampled_alone = self.form == "sampled" and self.baseline == "none" and self.entropy_threshold is None
        return self.coef > 0 and not (sampled_alone and self.outlier != "forward_kl")


class Reference(Section):
    """An anchor: KL to the weights at the start of the stage."""

    coef: NonNegative = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k2"
    """Back-propagated. k2: gradient of KL(student || reference). k3: of KL(reference || student). k1: refused."""
    target_kl: Positive | None = None
    """The coefficient follows this many nats per token; null: it stays."""
    aggregation: Aggregation = "token_mean"


class Importance(Section):
    """Corrects policy gradients for tokens that older weights, or a truncated distribution, have sampled."""

    mode: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"] = (
        "none"
    )
    """Of pi_prox / mu, detached, never on top of a ratio against mu. token_truncate: TIS. token_mask: MIS, IcePop."""
    low: NonNegative = 0.0
    high: Positive = 2.0


class Signals(Section):
    """Where supervision comes from, and how much of each."""

    outcome: Outcome = Outcome()
    distill: Distill = Distill()
    reference: Reference = Reference()
    importance: Importance = Importance()
