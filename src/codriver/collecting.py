"""Where a step's episodes come from: the student's rollouts (`train`) or worked solutions (`sft`, `pretrain`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codriver.episode import Episode, Int, Message, Prompt
from codriver.errors import InputError
from codriver.models.load import Policy
from codriver.models.render import decode_completion, render, render_answer, render_reply
from codriver.recipe.schema import Recipe
from codriver.rollout.play import Draw, play
from codriver.rollout.protocol import Engine, Sampling
from codriver.rollout.script import Turns
from codriver.rollout.written import written_dialogue, written_episode
from codriver.tasks.mix import Part, draw_prompts
from codriver.tasks.protocol import Environment, HasEnvironment, Task, WritesTurns


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A task's problems as the student sees them: prompts as ids, ids as text, and what an environment says between."""

    tokenizer: Any
    stop_ids: tuple[int, ...]
    longest_prompt: int
    """Tokens a prompt may have."""
    limit: str
    """What sets `longest_prompt`, in words."""
    max_length: int
    """Tokens of an episode of several turns."""
    timeout_s: float
    """Of one answer of an environment."""

    def render(self, prompt: Prompt) -> Int:
        """Raises InputError: the prompt is longer than the recipe or the model's context allows."""
        ids = render(self.tokenizer, prompt.messages, tools=prompt.tools)
        if len(ids) > self.longest_prompt:
            raise InputError(
                f"prompt {prompt.id}: {len(ids)} tokens, but {self.limit} {self.longest_prompt}; raise it or drop the "
                f"prompt"
            )
        return ids

    def decode(self, ids: Int, stop: str) -> str:
        return decode_completion(self.tokenizer, ids, stop_string=stop)

    def turns(self, tasks: Callable[[str], Task]) -> Turns:
        """Args: tasks: the task that a prompt names."""

        def environment(prompt: Prompt) -> Environment | None:
            task = tasks(prompt.task)
            return task.environment(prompt) if isinstance(task, HasEnvironment) else None

        return Turns(environment=environment, reply=self._reply, max_length=self.max_length, timeout_s=self.timeout_s)

    def written(self, prompt: Prompt, task: Task, group: str, *, whole_text: bool) -> Episode:
        """A worked episode, of one turn or of several."""
        if isinstance(task, HasEnvironment):
            solutions = task.solution_turns(prompt) if isinstance(task, WritesTurns) else ()
            turns = self.turns(lambda name: task)
            return written_dialogue(
                prompt, group, solutions, turns=turns, render=self.render, write=self._write, whole_text=whole_text
            )
        return written_episode(
            prompt,
            group,
            task.solution(prompt),
            render=self.render,
            render_whole=lambda p, answer: render(self.tokenizer, p.messages, answer=answer, tools=p.tools),
            stop_ids=self.stop_ids,
            whole_text=whole_text,
            max_length=self.max_length,
        )

    def _reply(self, prompt: Prompt, reply: Sequence[Message], is_ended: bool) -> Int:
        stop_ids, tools = self.stop_ids, prompt.tools
        return render_reply(self.tokenizer, prompt.messages, reply, stop_ids=stop_ids, is_ended=is_ended, tools=tools)

    def _write(self, prompt: Prompt, answer: str) -> Int:
        return render_answer(self.tokenizer, prompt.messages, answer, stop_ids=self.stop_ids, tools=prompt.tools)


def make_conversation(recipe: Recipe, policy: Policy) -> Conversation:
    rollout, room = recipe.rollout, policy.context - 1
    longest = min(rollout.max_prompt_length, room)
    return Conversation(
        tokenizer=policy.tokenizer,
        stop_ids=policy.stop_ids,
        longest_prompt=longest,
        limit="rollout.max_prompt_length is" if longest < room else f"the context of {policy.name} leaves",
        max_length=rollout.max_episode_length or policy.context,
        timeout_s=rollout.environment_timeout_s,
    )


def episode_length(recipe: Recipe, policy: Policy) -> int:
    """Tokens an episode may have: as long as a prompt and a completion may be, unless the recipe says.

    Raises InputError: the recipe says more than the model's context.
    """
    said = recipe.rollout.max_episode_length
    if said > policy.context:
        raise InputError(
            f"rollout.max_episode_length: got {said}, expected at most the context of {policy.name}, {policy.context} "
            f"tokens, change: write a smaller length"
        )
    return said or min(policy.context, recipe.rollout.max_prompt_length + recipe.rollout.max_completion_length)


def make_collect(
    recipe: Recipe, conversation: Conversation, engine: Engine, parts: Sequence[Part], sampling: Sampling
) -> Callable[[int], list[Episode]]:
    tasks = {part.name: part.task for part in parts}

    def rollouts(step: int) -> list[Episode]:
        prompts = draw_prompts(parts, seed=recipe.seed, step=step, count=recipe.rollout.prompts_per_step)
        draws = [
            Draw(
                prompt=prompt,
                group=f"{step}/{number}",
                samples=recipe.rollout.num_generations,
                seed=int(np.random.SeedSequence([recipe.seed, step, number]).generate_state(1)[0]),
            )
            for number, prompt in enumerate(prompts)
        ]
        turns = conversation.turns(tasks.__getitem__)
        return play(
            engine, draws, sampling=sampling, render=conversation.render, decode=conversation.decode, turns=turns
        )

    def solutions(step: int) -> list[Episode]:
        prompts = draw_prompts(parts, seed=recipe.seed, step=step, count=recipe.supervised.batch_size)
        whole_text = recipe.kind == "pretrain"
        return [
            conversation.written(prompt, tasks[prompt.task], f"{step}/{number}", whole_text=whole_text)
            for number, prompt in enumerate(prompts)
        ]

    return rollouts if recipe.kind == "train" else solutions
