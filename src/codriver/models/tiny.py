"""Models of a few hundred thousand to a few million parameters and their character tokenizer, made on the spot.

No download, the same weights for the same seed: what tests, smoke runs and the first example train.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from codriver.errors import InputError
from codriver.models.presets import PRESETS

SPECIAL = ("<pad>", "<bos>", "<eos>", "<sep>", "<unk>")
"""Their ids are their places: 0 to 4."""
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else sep_token }}{% endfor %}"
)
"""The <sep> behind a turn already asks for the answer, so a generation prompt adds nothing."""

HEAD_SIZE = 32
"""Of every preset: the smallest that all attention kernels take, vLLM's included."""
MAX_POSITIONS = 1024


def make_tiny(
    preset: str,
    *,
    seed: int,
    hidden_size: int | None = None,
    num_layers: int | None = None,
    max_positions: int | None = None,
) -> tuple[Any, PreTrainedTokenizerFast]:
    """A float32 model with random weights, in eval mode, and its tokenizer.

    Args:
        seed:        of the weights; torch's global random state is neither read nor changed.
        hidden_size: multiple of 32 instead of the preset's; the MLP is four times as wide.
    Raises:
        InputError: unknown preset, or a size that does not work.
    """
    if preset not in PRESETS:
        raise InputError(f"tiny:{preset}: unknown preset, expected one of {', '.join(PRESETS)}")
    shape = PRESETS[preset]
    hidden = shape["hidden_size"] if hidden_size is None else hidden_size
    layers = shape["num_layers"] if num_layers is None else num_layers
    positions = MAX_POSITIONS if max_positions is None else max_positions
    if hidden < HEAD_SIZE or hidden % HEAD_SIZE:
        raise InputError(f"tiny:{preset}: hidden_size must be a multiple of {HEAD_SIZE}, got {hidden}")
    if layers < 1 or positions < 2:
        raise InputError(
            f"tiny:{preset}: num_layers must be at least 1 and max_positions at least 2, got {layers} and {positions}"
        )
    tokenizer = character_tokenizer(max_positions=positions)
    config = AutoConfig.for_model(
        shape["model_type"],
        **_sizes(shape["model_type"], hidden, layers, positions),
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        **_special_ids(tokenizer),
    )
    with seeded(seed):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.generation_config = GenerationConfig(**_special_ids(tokenizer))
    return model.eval(), tokenizer


def character_tokenizer(*, max_positions: int = MAX_POSITIONS) -> PreTrainedTokenizerFast:
    """One id per character: printable ASCII and newline. Any other character is <unk>.

    >>> character_tokenizer().decode(character_tokenizer().encode("2 + 2 =  ?"))
    '2 + 2 =  ?'
    """
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=False))
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{name.strip('<>')}_token": name for name in SPECIAL},
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_positions,
        padding_side="left",
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers inside depend on `seed` alone; outside they go on as if nothing had happened."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}


def _sizes(model_type: str, hidden: int, layers: int, positions: int) -> dict[str, Any]:
    heads = hidden // HEAD_SIZE
    if model_type == "gpt2":
        return {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": positions}
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if model_type == "llama" else 1,
        "head_dim": HEAD_SIZE,
        "initializer_range": hidden**-0.5,
        "max_position_embeddings": positions,
    }
    if model_type == "gemma3_text":
        # A window shorter than most texts, so that sliding and full attention differ.
        kinds = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
        sizes |= {"sliding_window": 16, "layer_types": kinds, "query_pre_attn_scalar": HEAD_SIZE}
    if model_type == "qwen2":
        del sizes["head_dim"]  # not a setting of this family: always hidden_size / heads
    return sizes
