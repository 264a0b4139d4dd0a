"""Whether a folder holds a whole model: looked at without opening a tensor and without torch."""

import json
from pathlib import Path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
WEIGHTS = ("*.safetensors", "*.bin")


def check_folder(folder: Path) -> list[str]:
    """What a model folder lacks and what to do, `folder: lack; advice` each; empty when it can be loaded."""
    if not folder.is_dir():
        return [f"{folder}: no such folder; correct the path (relative to where you run)"]
    problems = []
    if not (folder / "config.json").is_file():
        advice = "give the folder that save_pretrained wrote"
        if (folder / "adapter_config.json").is_file():
            advice = "this is an adapter: give the folder of the merged model (a run's `final`)"
        problems.append(f"{folder}: no config.json; {advice}")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        problems.append(f"{folder}: no tokenizer ({', '.join(TOKENIZER_FILES)}); tokenizer.save_pretrained(folder)")
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        problems.append(f"{folder}: no weights ({', '.join(WEIGHTS)}); save the model into it, or copy it again")
    for index in folder.glob("*.index.json"):
        try:
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError):
            problems.append(f"{index}: not readable; copy it again")
            continue
        if missing := [shard for shard in shards if not (folder / shard).is_file()]:
            problems.append(f"{folder}: lacks {', '.join(missing)}, named in {index.name}; copy the folder again")
    return problems
