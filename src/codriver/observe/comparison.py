"""The table that sets finished stages side by side."""

from collections.abc import Mapping
from typing import Any

from codriver.observe.metrics import sum_timings
from codriver.observe.run_folder import RunFolder

SECONDS = ("time/rollout", "time/teacher", "time/learn")


def comparison_rows(folders: Mapping[str, RunFolder], *, evaluation_set: str, target: float) -> list[dict[str, Any]]:
    """Per stage: its final evaluations, steps to the target accuracy, tokens generated, seconds of each part.

    `steps_to_target` is the first evaluation at or above `target` on `evaluation_set` (the weights after that many
    steps), None when none was.
    """
    rows = []
    for name, folder in folders.items():
        logged = folder.rows()
        finals = [row for row in logged if row["row"] == "final"]
        total = sum_timings(row for row in logged if row["row"] == "training")
        row: dict[str, Any] = {"stage": name}
        for key, value in (finals[-1] if finals else {}).items():
            if key.startswith("eval/"):
                row[key] = value
        row["target"] = target
        row["steps_to_target"] = steps_to(logged, f"eval/{evaluation_set}/accuracy", target)
        row["steps"] = len([r for r in logged if r["row"] == "training"])
        row["mean_length"] = row.get(f"eval/{evaluation_set}/mean_length")
        row["tokens_generated"] = total.get("tokens/generated", 0.0)
        rows.append(row | {key: total.get(key, 0.0) for key in SECONDS})
    return rows


def steps_to(rows: list[dict[str, Any]], metric: str, target: float) -> int | None:
    reached = [row["step"] for row in rows if row["row"] != "training" and (row.get(metric) or 0.0) >= target]
    return min(reached) if reached else None
