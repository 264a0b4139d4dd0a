"""The recipe: every setting of a run, with its unit, its range and its vetted default.

A recipe with `stages` is a base plus partial recipes; `load.stage_trees` merges each stage over the base, and every
stage is then a whole `Recipe` of its own. Nothing is ever written to a recipe after loading.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from codriver.recipe.base import SIGNALS, AtLeastOne, Count, Fraction, NonNegative, Positive, Section
from codriver.recipe.signal_settings import Signals

__all__ = ["SIGNALS", "Compare", "Kind", "Plan", "Recipe", "Section", "Signals", "TaskShare", "Teacher"]

Kind = Literal["pretrain", "sft", "train"]


class Lora(Section):
    """Train low-rank adapters instead of all weights (needs the extra `peft`)."""

    rank: AtLeastOne = 32
    alpha: Positive = 64.0
    """Adapter output is scaled by alpha / rank."""


class Student(Section):
    """The model that is trained."""

    model: str
    """Hub id, folder, `*.gguf`, `tiny:<preset>` (made on the spot) or `stage:<name>` (final weights of a stage)."""
    lora: Lora | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: float32 on a CPU, the checkpoint's own type on a GPU."""
    device: str = "auto"
    """auto: cuda when there is one, else cpu."""


class Teacher(Section):
    """A model that judges every token the student sampled."""

    model: str
    """As `student.model`, or `student`: the student's own weights (a self-teacher)."""
    run: Literal["local"] = "local"
    """local: in this process."""
    weights: Literal["initial"] = "initial"
    """Of a self-teacher. initial: frozen at the start of the stage."""
    hint: str = ""
    """Text that only the teacher sees; `{solution}` and `{answer}` are filled in per prompt. Empty: no hint."""
    hint_place: Literal["system", "user"] = "user"
    """user: at the end of the last user turn. system: a system message in front."""
    temperature: Positive | None = None
    """Softens (> 1) or sharpens (< 1) the teacher. null: the sampling temperature, as the student."""


class TaskShare(BaseModel):
    """One task of the mix. Keys beyond these are the task's own options (`codriver tasks list` shows them)."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    task: str
    """Name of a task."""
    name: str = ""
    """Name of this entry in metrics and records, needed when a task is listed twice. Empty: the task's name."""
    share: Positive = 1.0
    """Relative share of the prompts of a step."""
    teacher: str = ""
    """Name under `teachers` that judges this task's episodes. Empty: the only teacher, if there is just one."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        return self.name or self.task


class Rollout(Section):
    """How the student samples."""

    engine: Literal["torch"] = "torch"
    prompts_per_step: AtLeastOne = 16
    num_generations: AtLeastOne = 8
    """Completions of one prompt: the group of GRPO."""
    max_completion_length: AtLeastOne = 128
    """Tokens a completion may have; a longer one ends with finish `length`."""
    max_prompt_length: AtLeastOne = 1024
    """Tokens a prompt may have; a longer one is refused with its id. Sets the size of the key-value cache."""
    temperature: Positive = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Count = 0
    """0 is off."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    stop_strings: tuple[str, ...] = ()
    max_episode_length: Count = 0
    """Tokens of an episode of several turns: prompt, all completions and all observations. A longer one ends with
    finish `context`. Needed where a task has several turns; 0: a prompt and one completion."""
    environment_timeout_s: NonNegative = 60.0
    """Wall time of one answer of an environment; a slower one makes the verdict `invalid`. 0: no limit."""
    max_slots: AtLeastOne = 128
    """Completions sampled at the same time: rows of the key-value cache."""
    verify_timeout_s: NonNegative = 60.0
    """Wall time of one verdict, from when its verifier starts; a slower one is asked once more, then it is `invalid`.
    0: no limit."""
    verify_threads: AtLeastOne = 4
    """Verdicts at the same time: for verifiers that wait for a process or a server."""
    max_invalid_frac: Fraction = 0.2
    """A step with a larger share of failed verifications stops the run."""


class Supervised(Section):
    """Batches of the stages `pretrain` and `sft`."""

    batch_size: AtLeastOne = 64
    """Examples per step."""


class Optimizer(Section):
    """AdamW."""

    num_iterations: AtLeastOne = 1
    """Optimizer steps on each batch, each on all of it; the ratio is against the weights before the first."""
    learning_rate: Positive = 1e-6
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    weight_decay: NonNegative = 0.0
    max_grad_norm: Positive = 1.0
    """Gradients with a larger L2 norm are scaled down to it."""
    warmup_steps: Count = 0
    """Learning rate rises linearly from 0 over these steps."""
    schedule: Literal["constant", "cosine"] = "constant"
    """cosine: falls to `min_lr_frac` of the peak at the last step."""
    min_lr_frac: Fraction = 0.1


class Learner(Section):
    """How a batch is computed. None of these changes the gradient."""

    micro_batch_tokens: AtLeastOne = 16384
    """Positions of one forward and backward pass, padding included."""
    head_chunk_tokens: AtLeastOne = 4096
    """Rows of [tokens x vocabulary] that exist at a time."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, less memory."""


class Evaluate(Section):
    """The held-out pass: problems that no training stage draws."""

    every: Count = 10
    """Steps between evaluations; 0: only at the end of the stage."""
    prompts: AtLeastOne = 64
    """Problems per set."""
    final_prompts: AtLeastOne | None = None
    """Problems per set at the end of the stage. null: as `prompts`."""
    samples: AtLeastOne = 4
    """Completions per problem: accuracy is their mean, pass@k is unbiased for k up to this."""
    temperature: NonNegative | None = None
    """null: the rollout's temperature. 0: greedy."""
    sets: dict[str, TaskShare] = Field(default_factory=dict)
    """Further sets, evaluated at the end of the stage and reported apart: name -> a task with its options."""


class Checkpoint(Section):
    """What survives a kill."""

    every: Count = 10
    """Steps between checkpoints; 0: only at the end of the stage."""
    keep: AtLeastOne = 2
    """Newest checkpoints kept."""


class Records(Section):
    """Token records in the run folder."""

    every: Count = 10
    """Steps between token tables and episode tables; 0: none."""
    max_episodes: AtLeastOne = 64
    """Episodes kept of such a step; all tokens are counted in the metrics whatever is kept."""


class Compare(Section):
    """The table at the end of a recipe with stages."""

    stages: tuple[str, ...]
    """Stages to set side by side."""
    set: str = ""
    """Evaluation set of `steps to target`. Empty: the first task's."""
    target: Fraction = 0.5
    """Accuracy of `steps to target`."""


class Recipe(Section):
    """One run, or one stage of it with the base merged in."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Letters, digits, '.', '_', '-': it names a folder."""
    kind: Kind = "train"
    """pretrain: every token of the task's text. sft: the tokens of worked solutions. train: the student's rollouts."""
    seed: Count = 0
    output_dir: str = ""
    """Run folder. Empty: runs/<name>."""
    student: Student
    teachers: dict[str, Teacher] = Field(default_factory=dict)
    tasks: Annotated[tuple[TaskShare, ...], Field(min_length=1)]
    supervised: Supervised = Supervised()
    rollout: Rollout = Rollout()
    signals: Signals = Signals()
    optimizer: Optimizer = Optimizer()
    learner: Learner = Learner()
    steps: AtLeastOne = 100
    """Optimizer steps."""
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    records: Records = Records()
    threads: Count = 0
    """CPU threads of torch. 0: the cores this process may use."""

    @property
    def needs_teacher(self) -> bool:
        outcome = self.signals.outcome
        reweighted = outcome.coef > 0 and outcome.reweight != "none"
        return self.kind == "train" and (self.signals.distill.coef > 0 or reweighted)

    def teacher_of(self, share: TaskShare) -> str:
        """Name of the teacher that judges a task; empty for none."""
        return share.teacher or (next(iter(self.teachers)) if len(self.teachers) == 1 else "")


class Plan(Section):
    """A whole recipe file: its stages in order (one, named like the recipe, when it lists none)."""

    name: str
    output_dir: str
    stages: tuple[Recipe, ...]
    compare: Compare | None = None

    @property
    def is_staged(self) -> bool:
        return len(self.stages) > 1 or self.stages[0].name != self.name
