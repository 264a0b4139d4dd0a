"""What a teacher is: something that scores the student's tokens on exactly the states the student reached."""

from collections.abc import Sequence
from typing import Protocol

from codriver.episode import Episode, TeacherView


class Teacher(Protocol):
    """One named judge of tokens."""

    @property
    def name(self) -> str: ...

    def score(self, episodes: Sequence[Episode]) -> Sequence[TeacherView | str]:
        """A view of each episode's trainable tokens, or, in words, why that one could not be scored."""
        ...
