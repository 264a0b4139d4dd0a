"""What a user can be told, and the exit code that goes with it. Imports no room; any room may import it."""

import errno
from collections.abc import Sequence
from pathlib import Path

EXIT_DONE, EXIT_FAILURE, EXIT_BAD_INPUT, EXIT_STOPPED = 0, 1, 2, 3
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class CodriverError(Exception):
    """Something the user can act on: shown as its message, without a traceback."""

    exit_code = EXIT_FAILURE


class InputError(CodriverError):
    """The recipe, the data or the folder is not usable. Nothing was trained."""

    exit_code = EXIT_BAD_INPUT


class RecipeError(InputError):
    """All problems of one recipe, each as `path.to.key: got ..., expected ..., change ...`."""

    def __init__(self, problems: Sequence[str], *, source: str = "recipe") -> None:
        self.problems = list(problems)
        plural = "problem" if len(self.problems) == 1 else "problems"
        super().__init__(f"{source}: {len(self.problems)} {plural}\n" + "\n".join(f"  {p}" for p in self.problems))


class CheckpointError(CodriverError):
    """A checkpoint is damaged or does not belong to this run."""


class NonFiniteLoss(CodriverError):
    """The loss or a gradient is NaN or infinite; the optimizer was not stepped and the batch was saved."""


def problem(path: str, got: object, expected: str, change: str) -> str:
    """One line of a `RecipeError`.

    >>> problem("steps", -1, "an integer >= 1", "set steps to 1 or more")
    'steps: got -1, expected an integer >= 1, change: set steps to 1 or more'
    """
    return f"{path}: got {got!r}, expected {expected}, change: {change}"


def disk_error(error: OSError, where: Path) -> CodriverError:
    """An OSError while writing, as something to act on."""
    if error.errno in DISK_FULL:
        return CodriverError(
            f"{where}: the disk is full. The last whole checkpoint is untouched: free some space "
            f"(checkpoint.keep: 1 needs less) and run the same command with --resume"
        )
    return CodriverError(f"{where}: cannot write ({error})")
