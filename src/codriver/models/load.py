"""A model and its tokenizer by name: made on the spot, from a folder, a GGUF file, an earlier stage or the hub."""

import copy
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel
from transformers.utils import logging

from codriver.errors import InputError
from codriver.models.folder import check_folder
from codriver.models.lora import has_adapter, merged_copy, save_adapter
from codriver.models.tiny import make_tiny
from codriver.models.vocabulary import real_vocab_size

UNBOUNDED_CONTEXT = 1 << 30
"""Positions of a model whose config names no limit."""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
GGUF_SOURCE = "gguf_source.json"
"""In a converted folder: size and time of the file that it was made from."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A language model, its tokenizer, and what the rest of the program must know of both."""

    name: str
    """As the recipe wrote it."""
    model: PreTrainedModel
    """In eval mode. Inside a peft wrapper when it has an adapter."""
    tokenizer: Any
    vocab_size: int
    """Ids that stand for a token. The head may have more rows: padding, which gets no probability."""
    context: int
    """Most positions of one text."""
    stop_ids: tuple[int, ...]
    """Every id that ends a completion: of the generation config, the config and the tokenizer, in that order."""


def load_policy(
    name: str,
    *,
    stages: Mapping[str, Path] = MappingProxyType({}),
    dtype: str = "auto",
    device: str = "cpu",
    seed: int = 0,
) -> Policy:
    """Load or make a policy.

    Args:
        name:   `tiny:<preset>`, `stage:<name>`, a folder, a `*.gguf` file (converted once, beside it), or a hub id.
        stages: folders of `stage:` names.
        dtype:  auto: float32 on a CPU, the checkpoint's own elsewhere; or float32, bfloat16, float16, float64.
        seed:   of the weights of a `tiny:` model; the others have theirs.
    Raises:
        InputError: it cannot be had, or is not whole; the message says what to change.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise InputError(f"{name}: dtype must be auto or one of {', '.join(DTYPES)}, got {dtype!r}")
    kind = DTYPES.get(dtype) or (torch.float32 if torch.device(device).type == "cpu" else "auto")
    if name.startswith("tiny:"):
        model, tokenizer = make_tiny(name.removeprefix("tiny:"), seed=seed)
        model = model if kind == "auto" else model.to(kind)
    else:
        model, tokenizer = _load(_source(name, stages), name, kind)
    return _policy(name, model.to(device).eval(), tokenizer)


def save_policy(policy: Policy, folder: Path, *, merge: bool = False) -> None:
    """Write an ordinary HF folder that `from_pretrained` reads; weights are stored in the type they have here.

    Args:
        merge: with an adapter: True writes the whole model with the adapter added in, False the adapter alone.
               Without one it makes no difference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    policy.tokenizer.save_pretrained(folder)
    if has_adapter(policy.model) and not merge:
        save_adapter(policy.model, folder)
    else:
        _save_model(merged_copy(policy.model) if has_adapter(policy.model) else policy.model, folder)


def convert_gguf(file: Path, *, cache: Path | None = None) -> Path:
    """A float32 safetensors folder with the weights, tokenizer and chat template of a GGUF file; made once.

    Args:
        cache: where the folder `<file name>.hf` goes; None: beside the file.
    Raises:
        InputError: the file is not there or is not one that transformers can read, or the folder cannot be written.
    """
    if not file.is_file():
        raise InputError(f"{file}: no such file; correct the path (relative to where you run)")
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"{file}: GGUF files need the package gguf; pip install codriver[gguf]")
    status = file.stat()
    source = json.dumps({"size": status.st_size, "modified_ns": status.st_mtime_ns})
    folder = (cache or file.parent) / f"{file.name}.hf"
    if _is_made_from(folder, source):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error}); copy the GGUF file to where you may write") from error
    try:
        model, tokenizer = _load(file.parent, str(file), torch.float32, gguf_file=file.name)
        tokenizer.save_pretrained(temporary)
        _save_model(model, temporary)
        (temporary / GGUF_SOURCE).write_text(source)
        temporary.chmod(0o755)  # mkdtemp gives 700
        if not _is_made_from(folder, source):  # another process may have been faster
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _source(name: str, stages: Mapping[str, Path]) -> Path | str:
    """The folder to load, or a hub id."""
    if name.startswith("stage:"):
        stage = name.removeprefix("stage:")
        if stage not in stages:
            raise InputError(f"{name}: no such stage before this one, expected one of {', '.join(stages) or 'none'}")
        folder = stages[stage]
    else:
        folder = Path(name).expanduser()
        if folder.suffix == ".gguf":
            return convert_gguf(folder)
        looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
        if not folder.exists() and not looks_local:
            return name
    if problems := check_folder(folder):
        raise InputError("\n".join(problems))
    return folder


def _load(source: Path | str, name: str, dtype: Any, *, gguf_file: str | None = None) -> tuple[Any, Any]:
    options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source), **options)
        if gguf_file:
            options["quantization_config"] = GgufConfig(dequantize=True)
        with _no_progress_bars() if isinstance(source, Path) else nullcontext():  # a download shows its progress
            model, report = AutoModelForCausalLM.from_pretrained(
                str(source), dtype=dtype, attn_implementation="sdpa", output_loading_info=True, **options
            )
    except Exception as error:  # tokenizers and safetensors raise nothing narrower for a damaged file
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        if isinstance(source, Path):
            raise InputError(f"{name}: cannot be loaded from {source} ({reason}); give another model") from error
        raise InputError(
            f"{name}: no such folder here, and not to be had from the hub ({reason}); correct the name, go online, "
            f"or fetch it once with `hf download {name}` where there is a network and give its folder"
        ) from error
    # transformers fills what a checkpoint lacks with random numbers, and goes on.
    if lacking := sorted([*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])]):
        raise InputError(
            f"{name}: its weights lack {len(lacking)} tensors that {type(model).__name__} needs, such as {lacking[0]}; "
            f"give a whole checkpoint of a causal language model"
        )
    return model, tokenizer


def _policy(name: str, model: Any, tokenizer: Any) -> Policy:
    config, rows = model.config.get_text_config(decoder=True), model.get_output_embeddings().weight.shape[0]
    beyond = [(i, token) for token, i in tokenizer.get_vocab().items() if i >= rows]
    # Gemma's text models have no row for the image token of their tokenizer; they can neither read nor write it.
    if unknown := sorted((i, token) for i, token in beyond if i not in tokenizer.added_tokens_decoder):
        raise InputError(
            f"{name}: its tokenizer knows id {unknown[0][0]} ({unknown[0][1]!r}), but the output head has only {rows} "
            f"rows; give the tokenizer that belongs to the model"
        )
    vocab_size = min(real_vocab_size(tokenizer), rows)
    eos: list[Any] = []
    for ids in (model.generation_config.eos_token_id, config.eos_token_id, tokenizer.eos_token_id):
        eos += ids if isinstance(ids, list | tuple) else [ids]
    return Policy(
        name=name,
        model=model,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        context=getattr(config, "max_position_embeddings", None) or UNBOUNDED_CONTEXT,
        stop_ids=tuple(dict.fromkeys(int(i) for i in eos if i is not None and 0 <= i < vocab_size)),
    )


def _save_model(model: Any, folder: Path) -> None:
    # Some published configs set a temperature but not do_sample, which transformers loads and then refuses to save.
    settings = model.generation_config
    try:
        settings.validate(strict=True)
    except ValueError:
        model.generation_config = copy.deepcopy(settings)
        model.generation_config.do_sample = True
    try:
        with _no_progress_bars():
            model.save_pretrained(folder)
    finally:
        model.generation_config = settings


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Those of transformers would cut through the program's own, at every checkpoint."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _is_made_from(folder: Path, source: str) -> bool:
    marker = folder / GGUF_SOURCE
    return marker.is_file() and marker.read_text() == source
