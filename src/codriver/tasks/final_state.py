"""What holds for the states of every task whose episodes are one completion."""

from collections.abc import Sequence
from dataclasses import replace

from codriver.episode import Episode, StateCheck, Verdict


def settled(episode: Episode, verdict: Verdict, checks: Sequence[StateCheck]) -> list[StateCheck]:
    """The checks of the last completion in the order of its text, each in the light of those before it.

    What cannot be mended stays so: after an irrecoverable state every judged state is irrecoverable, for the first
    one's reason. An episode that ended unsolved ends in an irrecoverable state; where the text has none, one of no
    characters stands at its end. So the last judged state of a solved episode is never irrecoverable, and that of an
    unsolved one always is.
    """
    found: list[StateCheck] = []
    lost = ""
    for check in sorted(checks, key=lambda c: (c.start, c.stop)):
        if lost and check.label != "unknown":
            check = replace(check, label="irrecoverable", constraint=lost)
        if check.label == "irrecoverable":
            lost = check.constraint
        found.append(check)
    if verdict.label != "correct" and not lost:
        end = len(episode.text)
        why = verdict.detail or "ended without being solved"
        last = len(episode.completions) - 1
        found.append(StateCheck(turn=last, start=end, stop=end, label="irrecoverable", constraint=why))
    return found
