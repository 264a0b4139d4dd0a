"""A teacher in this process, with weights of its own or the student's, with or without a hint in front."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from codriver.episode import Episode, Int, TeacherView
from codriver.models.packing import TokenSequence
from codriver.models.score import Scores, score_tokens

HintedPrompt = Callable[[Episode], Int]
"""The ids of an episode's prompt as the teacher sees it: the student's conversation with a hint in it."""


def same_prompt(episode: Episode) -> Int:
    """A teacher without a hint sees what the student saw."""
    return episode.token_ids[: prompt_length(episode)]


def prompt_length(episode: Episode) -> int:
    """Tokens before the first trainable one."""
    return int(np.argmax(episode.trainable)) if episode.num_sampled else len(episode)


@dataclass(frozen=True, kw_only=True)
class LocalTeacher:
    """Scores with a frozen model.

    With a hint the student's tokens are scored verbatim behind the hinted prompt; the hint is never part of the
    episode, so it cannot reach the student's context or loss.
    """

    name: str
    model: nn.Module
    vocab_size: int
    """Ids shared with the student: rows of the head beyond them are padding."""
    temperature: float | None
    """None: each episode's own, as the student's log-probs."""
    max_length: int
    """Context of the model, in tokens."""
    version: int = 0
    prompt: HintedPrompt = same_prompt
    micro_batch_tokens: int = 16384

    keep_hidden: bool = False
    """Hand over last hidden states too, from which the learner rebuilds the whole distribution."""

    def score(self, episodes: Sequence[Episode]) -> Sequence[TeacherView | str]:
        sequences, problems = [], []
        for episode in episodes:
            sequence = self._view(episode)
            too_long = len(sequence.ids) > self.max_length
            problems.append(f"{len(sequence.ids)} tokens with the hint, context {self.max_length}" if too_long else "")
            sequences.append(TokenSequence(ids=sequence.ids, chosen=sequence.chosen[:0]) if too_long else sequence)
        scores = score_tokens(
            self.model,
            sequences,
            vocab_size=self.vocab_size,
            temperature=[self.temperature or episode.temperature for episode in episodes],
            keep_hidden=self.keep_hidden,
            micro_batch_tokens=self.micro_batch_tokens,
        )
        return [self._answer(s, why) for s, why in zip(scores, problems, strict=True)]

    def _view(self, episode: Episode) -> TokenSequence:
        start = prompt_length(episode)
        prompt = self.prompt(episode)
        if start and len(prompt) and prompt[-1] != episode.token_ids[start - 1]:
            raise ValueError(
                f"episode {episode.id}: the token before the first response token must be the same for student and "
                f"teacher {self.name}, got {episode.token_ids[start - 1]} and {prompt[-1]}; the hint's place "
                f"breaks the chat template"
            )
        ids = np.concatenate([prompt, episode.token_ids[start:]])
        return TokenSequence(ids=ids, chosen=np.flatnonzero(episode.trainable) - start + len(prompt))

    def _answer(self, scores: Scores, why: str) -> TeacherView | str:
        if why:
            return why
        if not np.isfinite(scores.logp).all():
            return f"{int((~np.isfinite(scores.logp)).sum())} log-probs are not finite"
        return TeacherView(
            teacher=self.name, version=self.version, logp=scores.logp, entropy=scores.entropy, hidden=scores.hidden
        )
