"""Low-rank adapters on a frozen model, through peft: the only file that imports it."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codriver.errors import InputError
from codriver.models.tiny import seeded

ADAPTER = "default"
"""peft's name for the one adapter that a model has here."""
WEIGHTS_FILE = "adapter_model.safetensors"


def add_lora(
    model: Any,
    *,
    rank: int,
    alpha: float,
    target_modules: Sequence[str] | None = None,
    dropout: float = 0.0,
    seed: int,
) -> Any:
    """The model with an adapter in it; only the adapter's weights are trainable, and at first it changes nothing.

    `model` itself is altered: its linear layers are wrapped in place. Adapter weights are float32 even where the model
    is bfloat16.

    Args:
        alpha:          adapter output is scaled by alpha / rank.
        target_modules: names of linear layers; None: all but the output head.
        dropout:        on the adapter's input, in training mode only. Above 0 the sampled distribution (eval mode) is
                        not the one that learns.
        seed:           of the adapter's weights; torch's global random state is neither read nor changed.
    Raises:
        InputError: peft is not installed, or no layer has one of the names.
    """
    peft = _peft()
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear" if target_modules is None else list(target_modules),
        lora_dropout=dropout,
        # GPT-2 keeps its weights transposed; peft would find out by itself, but with a warning.
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    training = model.training
    with seeded(seed):
        try:
            adapted = peft.get_peft_model(model, config)
        except ValueError as error:
            raise InputError(f"lora: {error}") from error
    return adapted.train(training)


def has_adapter(model: Any) -> bool:
    """Whether `add_lora` wrapped it."""
    return hasattr(model, "get_base_model")


@contextmanager
def adapter_disabled(model: Any) -> Iterator[None]:
    """Inside, the model is the frozen base. For forward passes only: a backward inside would not reach the adapter.

    Raises:
        ValueError: there is no adapter, so the weights before training are gone.
    """
    if not has_adapter(model):
        raise ValueError(f"adapter_disabled: expected a model from add_lora, got {type(model).__name__}")
    with model.disable_adapter():
        yield


def save_adapter(model: Any, folder: Path) -> None:
    """The adapter alone, in peft's format. `load_adapter` reads it back bit by bit."""
    # Otherwise peft asks the hub for the base model's config to see whether the vocabulary grew.
    model.save_pretrained(folder, save_embedding_layers=False)


def load_adapter(model: Any, folder: Path) -> None:
    """Fill the adapter that `add_lora` made with saved weights; the number of trainable parameters does not change.

    Raises:
        InputError: there is no adapter, or its layers or rank are others.
    """
    from safetensors.torch import load_file

    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise InputError(f"{folder}: no {WEIGHTS_FILE}, expected an adapter that save_adapter wrote")
    saved = load_file(file)
    current = _peft().get_peft_model_state_dict(model, save_embedding_layers=False)
    if differing := sorted(
        name for name in saved.keys() | current.keys()
        if name not in saved or name not in current or saved[name].shape != current[name].shape
    ):  # fmt: skip
        raise InputError(
            f"{folder}: the adapter is not the one of this recipe, first at {differing[0]} "
            f"({_size(saved.get(differing[0]))} saved, {_size(current.get(differing[0]))} expected); "
            f"use the rank and the target modules that it was trained with"
        )
    with torch.no_grad():
        for name, values in current.items():
            values.copy_(saved[name])  # `current` holds the parameters' own storage


def merged_copy(model: Any) -> Any:
    """An ordinary model with the adapter added to its weights, for saving only (its rotary tables are not filled).

    The base is never written: merging and unmerging in place drifts a bfloat16 base. Sums are float32, rounded once.
    """
    base = model.get_base_model()
    merged: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, values in base.state_dict().items():
            path, _, leaf = name.rpartition(".")
            if ".lora_" in name:
                continue
            if path.endswith(".base_layer"):
                path = path.removesuffix(".base_layer")
                if leaf == "weight":
                    delta = base.get_submodule(path).get_delta_weight(ADAPTER)
                    values = (values.float() + delta.float()).to(values.dtype)
            merged[f"{path}.{leaf}" if path else leaf] = values
    with torch.device("meta"):
        copy = type(base)(base.config)
    copy.load_state_dict(merged, assign=True)
    copy.tie_weights()
    copy.generation_config = base.generation_config
    return copy


def _size(values: Tensor | None) -> str:
    return "nothing" if values is None else str(list(values.shape))


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise InputError(f"student.lora needs the package peft ({error}); pip install codriver[peft]") from error
