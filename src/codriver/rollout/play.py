"""Episodes from an engine: the student writes, environments answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from codriver.episode import Episode, Prompt
from codriver.rollout.protocol import Engine, Sampling
from codriver.rollout.script import Decode, Render, Script, Turns
from codriver.rollout.worlds import Worlds


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One prompt of a step and how many completions it gets."""

    prompt: Prompt
    group: str
    """Unique in the run: `step/number`. Never the prompt's text: the same problem drawn twice is two groups."""
    samples: int
    seed: int


def play(
    engine: Engine,
    draws: Sequence[Draw],
    *,
    sampling: Sampling,
    render: Render,
    decode: Decode,
    turns: Turns | None = None,
) -> list[Episode]:
    """Sample every draw's episodes; they come back in the order of the draws, whatever ended first.

    Token-in, token-out: a later turn's prompt is the very ids of the episode so far, then the observation's ids.
    """
    scripts: dict[str, Script] = {}
    opened: list[Script] = []
    with Worlds(timeout_s=turns.timeout_s if turns else 0.0) as worlds:
        for draw in draws:
            prompt_ids = render(draw.prompt)
            for sample in range(draw.samples):
                script = Script(f"{draw.group}/{sample}", draw.prompt, draw.group, prompt_ids, [draw.seed, sample])
                scripts[script.id] = script
                if (environment := turns.environment(draw.prompt) if turns else None) is not None:
                    script.has_world = True
                    worlds.start(script.id, environment)
                else:
                    opened.append(script)
        engine.submit([script.request(sampling) for script in opened])
        while engine.num_pending or worlds.num_pending:
            for completion in engine.step() if engine.num_pending else ():
                script = scripts[completion.id]
                script.take(completion, decode(completion.token_ids, completion.stop_string))
                if script.has_world and completion.finish in ("stop", "length"):
                    worlds.step(script.id, script.completions[-1])
            if turns is not None:
                answers = worlds.poll(wait=not engine.num_pending)
                engine.submit([scripts[i].request(sampling) for i, a in answers if scripts[i].goes_on(a, turns)])
    return [script.episode(sampling.temperature) for script in scripts.values()]
