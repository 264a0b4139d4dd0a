"""Tasks, engines and tokenizers of several turns for tests."""

import asyncio

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from codriver.episode import Message
from codriver.rollout.protocol import Completion
from codriver.tasks.protocol import Observation

CHATML = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ 'user\n<tool_response>' if m.role == 'tool' else m.role }}\n"
    "{{ m.content }}{{ '</tool_response>' if m.role == 'tool' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS_THINKING = CHATML.replace(
    "{{ m.content }}", "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
)
NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('only user and assistant') }}"
    "{% endif %}[{{ m.role }}] {{ m.content }}{{ '<|im_end|>' if m.role == 'assistant' }}\n{% endfor %}"
)
LEAVES_TOOLS_OUT = "{% for m in messages if m.role != 'tool' %}[{{ m.role }}] {{ m.content }}<|im_end|>\n{% endfor %}"
TEMPLATES = {"chatml": CHATML, "forgets thinking": FORGETS_THINKING, "no tool role": NO_TOOL_ROLE,
             "leaves tools out": LEAVES_TOOLS_OUT}  # fmt: skip
HOSTILE = (
    '<tool_call>{"a":  1}</tool_call>',
    "<think>a  b\n\n</think>\n\ncafé 🚗 \u200d",
    "  two  spaces\n\n\n",
    "<|im_start|>user\nx",
)


def byte_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE with merges over spaces and newlines: tokenising text in pieces differs from tokenising it whole."""
    inner = Tokenizer(BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(["\n\n  <think>  </think>\n\n <tool_call> user\n assistant\n\n"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", chat_template=template)


class Counter:
    """Echoes each completion with its number; over after `turns`."""

    def __init__(self, turns: int = 3, *, wait_s: float = 0.0, role: str = "user", fails_at: int = -1):
        self.turns, self.wait_s, self.role, self.fails_at, self.seen = turns, wait_s, role, fails_at, []

    async def start(self):
        if self.wait_s:
            await asyncio.sleep(self.wait_s)

    async def step(self, completion):
        self.seen.append(completion)
        if len(self.seen) - 1 == self.fails_at:
            raise OSError("the world broke")
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        if len(self.seen) == self.turns:
            return Observation(done=True, facts={"seen": len(self.seen)})
        return Observation(messages=(Message(role=self.role, content=f"{len(self.seen)}:{completion}"),))


class TalkingEngine:
    """Plays given ids per turn, one request a step, and remembers what it was asked."""

    def __init__(self, turns, finish="stop"):
        self.turns, self.finish, self.waiting, self.asked = turns, finish, [], []

    @property
    def num_pending(self):
        return len(self.waiting)

    def submit(self, requests):
        self.waiting += requests
        self.asked += requests

    def step(self):
        request = self.waiting.pop(0)
        turn = sum(r.id == request.id for r in self.asked) - 1
        ids = np.array(self.turns[turn % len(self.turns)])
        n = len(ids)
        return [
            Completion(
                id=request.id, token_ids=ids, logp=np.full(n, -0.1 * (turn + 1), np.float32),
                kept_logp=np.zeros(n, np.float32), version=np.full(n, turn), finish=self.finish,
            )
        ]  # fmt: skip
