"""Names and sizes of the tiny models, apart so that a recipe can be checked without importing torch."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "llama-200k": {"model_type": "llama", "hidden_size": 64, "num_layers": 3},
    "llama-1m": {"model_type": "llama", "hidden_size": 128, "num_layers": 4},
    "llama-3m": {"model_type": "llama", "hidden_size": 192, "num_layers": 5},
    "qwen2": {"model_type": "qwen2", "hidden_size": 64, "num_layers": 2},
    "qwen3": {"model_type": "qwen3", "hidden_size": 64, "num_layers": 2},
    "gemma3": {"model_type": "gemma3_text", "hidden_size": 64, "num_layers": 2},
    "gpt2": {"model_type": "gpt2", "hidden_size": 64, "num_layers": 2},
}
"""Name -> architecture and sizes. The llama ones are for learning; the others stand for their family in tests."""
