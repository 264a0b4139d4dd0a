"""Tiny models of several architectures and engines over them, for the tests of the engine."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from codriver.rollout.protocol import Completion, Engine, Request, Sampling
from codriver.rollout.torch_engine import TorchEngine

V = 40  # the tiny models' vocabulary
SIZES: dict[str, Any] = dict(
    vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    initializer_range=0.3,
)  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=6, layer_types=["sliding_attention", "full_attention"])
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=V,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=512,
            bos_token_id=None,
            eos_token_id=None,
            initializer_range=0.3,
        )  # fmt: skip
    ),
}


def build(name: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(3)
    return MODELS[name]().to(dtype).eval()


def engine(model: Any, **settings: Any) -> TorchEngine:
    return TorchEngine(model, **{"vocab_size": V, "max_slots": 4, "max_length": 64, **settings})


def request(name: object, prompt: Sequence[int] = (1, 2, 3), *, seed: int = 0, **sampling: Any) -> Request:
    return Request(
        id=str(name), prompt_ids=np.array(prompt), seed=seed, sampling=Sampling(**{"max_tokens": 12, **sampling})
    )


def finish(engine: Engine, requests: Sequence[Request] = ()) -> dict[str, Completion]:
    engine.submit(requests)
    done: dict[str, Completion] = {}
    while engine.num_pending:
        done |= {completion.id: completion for completion in engine.step()}
    return done


def crowd(num: int, **sampling: Any) -> list[Request]:
    """Ragged prompts of 1 to 14 tokens, every third shared, ragged lengths."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, V, length).tolist() for length in rng.integers(1, 15, num)]
    return [
        request(n, prompts[n - n % 3], seed=n, max_tokens=int(rng.integers(1, 25)), **sampling) for n in range(num)
    ]  # fmt: skip


def full_logp(model: Any, request: Request, completion: Completion) -> torch.Tensor:
    """[n, V] the slow way: one forward over prompt and completion without a cache."""
    ids = torch.tensor([*request.prompt_ids, *completion.token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1]
    return torch.log_softmax(logits.float() / (request.sampling.temperature or 1.0), -1)
