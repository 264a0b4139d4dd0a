"""Shared by all tests: one thread (two would measure the machine, not the code) and tiny models made on the spot."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


def tiny_llama(
    *, seed: int = 0, vocab_size: int = 23, dtype: torch.dtype = torch.float64, **changes
) -> LlamaForCausalLM:
    sizes = dict(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    config = LlamaConfig(
        vocab_size=vocab_size, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, **(sizes | changes)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype).eval()


@pytest.fixture
def llama():
    return tiny_llama
