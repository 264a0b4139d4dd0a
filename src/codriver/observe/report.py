"""One or several run folders as one HTML file that needs nothing else: plots, tables, and a summary in plain words.

The page's look and its scripts are in `report_template.html`; this file decides what is said and which numbers go in.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from codriver.errors import InputError
from codriver.observe import read_run as rr
from codriver.observe.read_run import Row, RunRecord, read_run
from codriver.observe.report_template import (
    PLOTS,
    Line,
    Page,
    Plot,
    cell,
    duration,
    heading,
    is_share,
    joined,
    key_of,
    table,
)

TIME_ORDER = ("time/rollout", "time/verify", "time/teacher", "time/learn", "time/evaluate")
STATUS = {"done": "done", "stopped": "stopped by a rule", "unfinished": "not finished"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One line in every plot."""

    label: str
    record: RunRecord
    row: Row
    """Its row of the comparison table."""


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of `folders` to `out` (made anew) and return `out`.

    Raises:
        InputError: no folder, or one that is not a run folder.
    """
    if not folders:
        raise InputError(f"report: no run folder given; {rr.HOW}")
    records = [read_run(folder) for folder in folders]
    arms = arms_of(records)
    page = Page(title=" and ".join(record.name for record in records))
    for part in (_header(records), _summary(arms, len(records)), _comparison(arms)):
        page.add(part)
    _curves(page, arms)
    _supervised(page, records)
    page.add(_stages(records))
    page.add(_settings(records))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page.html(), encoding="utf-8")
    return out


def arms_of(records: Sequence[RunRecord]) -> list[Arm]:
    """What is set side by side: the arms of a comparison, else the stages that sample, else the run itself."""
    found: list[tuple[str, RunRecord, Row]] = []
    for number, record in enumerate(records):
        same = sum(other.name == record.name for other in records) > 1
        label = f"{record.name} ({number + 1})" if same else record.name
        if not record.stages:
            found.append((label, record, rr.comparison_row(record)))
            continue
        stages = {stage.name: stage for stage in record.stages}
        rows = {str(row.get("stage")): row for row in (record.comparison or {}).get("rows", ())}
        names = (record.comparison or {}).get("arms") or [s.name for s in record.stages if s.kind == "train"]
        for name in map(str, names):
            stage = stages.get(name) or RunRecord(name=name, folder=record.folder / "stages" / name)
            whole = f"{label} · {name}" if len(records) > 1 else name
            found.append((whole, stage, rr.stated_row(rows[name]) if name in rows else rr.comparison_row(stage)))
    return [Arm(label=label, record=stage, row=row) for label, stage, row in found]


# ------------------------------------------------------------------------------------------------------- in words


def summary_sentences(arms: Sequence[Arm], here: str = "in this run") -> list[str]:
    """What the numbers say, and no more. Plain text; an arm's label is quoted, it may be any word."""
    said: list[str] = []
    sets = rr.evaluation_sets([key for arm in arms for key in arm.row])
    for place, one in enumerate(sets):
        said += _accuracy_sentences(arms, one, here, is_first=place == 0)
    if not sets and arms:
        said.append(f"No held-out evaluation is logged {here}, so nothing can be said about unseen problems.")
        for arm in arms:
            values = rr.series(arm.record, "reward/mean")[1]
            if values:
                few = max(1, min(10, len(values) // 4))
                start, end = (sum(v) / few for v in (values[:few], values[-few:]))
                said.append(
                    f"“{arm.label}”: mean reward on its own training prompts {start:.3f} at first, {end:.3f} at last."
                )
    costs = [_cost(arm) for arm in arms]
    if any(costs):
        said.append("Cost: " + "; ".join(cost for cost in costs if cost) + ". Evaluation is not counted.")
    for arm in arms:
        if arm.record.status == "unfinished":
            said.append(f"“{arm.label}” is not finished (running, or killed): its figures are those so far.")
    return said


def _accuracy_sentences(arms: Sequence[Arm], one: str, here: str, *, is_first: bool) -> list[str]:
    name = f"eval/{one}/accuracy"
    known = [(rr.finite(arm.row.get(name)), arm) for arm in arms]
    ranked = sorted(((v, arm) for v, arm in known if v is not None), key=lambda pair: -pair[0])
    if not ranked:
        return []
    (top, first), *others = ranked
    where = f"held-out problems ({one})" if is_first else f"the set {one}"
    if len(arms) == 1:
        start = rr.series(first.record, name)[1][:1]
        moved = f"went from {start[0]:.1%} to {top:.1%}" if start else f"ended at {top:.1%}"
        said = [f"{here.capitalize()}, accuracy on {where} {moved}."]
    else:
        level = [f"“{arm.label}”" for v, arm in ranked if v == top]
        lead = f"{joined(level)} ended {'highest' if len(level) == 1 else 'level'} on {where} with {top:.1%}"
        rest = ", ".join(f"“{arm.label}” {v:.1%}" for v, arm in others if v != top)
        said = [f"{here.capitalize()}, {lead}{f'; {rest}' if rest else ''}."]
    if is_first:
        key = next((k for arm in arms for k in arm.row if k.startswith("steps_to_")), "steps_to_50")
        target = f"{key.removeprefix('steps_to_')}%"
        asked = [arm for v, arm in known if v is not None and key in arm.row]
        missed = [f"“{arm.label}”" for arm in asked if not isinstance(arm.row[key], int)]
        hits: dict[int, list[str]] = {}
        for arm in asked:
            if isinstance(step := arm.row[key], int):
                hits.setdefault(step, []).append(f"“{arm.label}”")
        if hits:
            text = f"{target} was first seen " + ", ".join(f"at step {s} by {joined(hits[s])}" for s in sorted(hits))
            said.append(text + (f"; {joined(missed)} did not reach it." if missed else "."))
        elif asked:
            said.append(f"Nothing reached {target} {here}.")
    return said


def _cost(arm: Arm) -> str:
    tokens = arm.row.get("tokens_generated")
    seconds = rr.work_s(arm.record) or sum(v for k, v in arm.row.items() if k.startswith("time/") and rr.finite(v))
    bits = [f"{tokens:,.0f} generated tokens"] if tokens else []
    bits += [f"{duration(seconds)} of work"] if seconds else []
    return f"“{arm.label}” {' and '.join(bits)}" if bits else ""


def _summary(arms: Sequence[Arm], num_runs: int) -> str:
    said = summary_sentences(arms, "in this run" if num_runs == 1 else "in these runs")
    if not said:
        said = ["No step is logged yet that could be summed up."]
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
    if len(arms) > 1:
        text += '<p class="caveat">Each arm is one run with one seed: small differences may be chance.</p>'
    return f'<section class="summary" aria-label="Summary">{text}</section>'


def _comparison(arms: Sequence[Arm]) -> str:
    keys = [k for k in dict.fromkeys(key for arm in arms for key in arm.row) if k != "stage"]
    keys = [k for k in keys if k.startswith("steps_to_") or any(arm.row.get(k) is not None for arm in arms)]
    if not keys:
        return ""
    best = {k: max((v for arm in arms if (v := rr.finite(arm.row.get(k))) is not None), default=None) for k in keys}
    body = []
    for number, arm in enumerate(arms):
        cells = [
            cell(k, arm.row.get(k), is_best=len(arms) > 1 and is_share(k) and arm.row.get(k) == best[k]) for k in keys
        ]
        body.append(f'<tr><th scope="row">{key_of(number)}{escape(arm.label)}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th scope="col">{escape(heading(k))}</th>' for k in keys)
    return "<h2>Side by side</h2>" + table("Comparison of the arms", f'<th scope="col">arm</th>{head}', body)


def _stages(records: Sequence[RunRecord]) -> str:
    rows = []
    for record in records:
        for stage in record.stages or (record,):
            label = f"{record.name} · {stage.name}" if len(records) > 1 and record.stages else stage.name
            planned = f" of {stage.planned_steps:,}" if stage.planned_steps else ""
            tokens, seconds = (
                rr.totals(stage).get("tokens/generated"),
                sum(v for k, v in rr.totals(stage).items() if k.startswith("time/") and k not in rr.NOT_WORK[1:]),
            )
            reason = str((stage.ending or {}).get("reason", "")) if stage.status == "stopped" else ""
            state = STATUS[stage.status] + (f": {reason}" if reason else "")
            cells = [stage.kind, f"{stage.num_steps:,}{planned}", state, _result(stage)]
            text = "".join(f'<td class="text">{escape(cell)}</td>' for cell in cells)
            spent = f"<td>{f'{tokens:,.0f}' if tokens else '–'}</td><td>{duration(seconds) if seconds else '–'}</td>"
            rows.append(f'<tr><th scope="row">{escape(label)}</th>{text}{spent}</tr>')
    columns = ("stage", "kind", "steps", "state", "result", "tokens generated", "time")
    head = "".join(
        f'<th scope="col"{" style=text-align:left" if 0 < i < 5 else ""}>{c}</th>' for i, c in enumerate(columns)
    )
    return "<h2>Stages</h2>" + table("What each stage did", head, rows)


def _result(stage: RunRecord) -> str:
    names = rr.metric_names(stage)
    shown = [(f"{one} accuracy", f"eval/{one}/accuracy", ".1%") for one in rr.evaluation_sets(names)]
    shown.append(("loss", "signal/supervised/loss", ".4f"))
    found = [f"{what} {value:{form}}" for what, name, form in shown if (value := rr.last(stage, name)) is not None]
    if not found and (reward := rr.last(stage, "reward/mean")) is not None:
        found = [f"reward {reward:.3f}"]
    return ", ".join(found) or "–"


# ------------------------------------------------------------------------------------------------------- curves


def _curves(page: Page, arms: Sequence[Arm]) -> None:
    sets = rr.evaluation_sets([name for arm in arms for name in rr.metric_names(arm.record)])
    accuracy = [
        Plot(
            metric=re.escape(f"eval/{one}/accuracy"),
            title=f"Accuracy: {one}",
            note="On problems that no stage trained on." if place == 0 else "Evaluated apart.",
            is_percent=True,
            is_noisy=False,
        )
        for place, one in enumerate(sets)
    ]
    drawn = [(plot, lines) for plot in (*accuracy, *PLOTS) if (lines := _lines(arms, plot.metric))]
    times = [rr.totals(arm.record) for arm in arms]
    stages = [k for k in dict.fromkeys([*TIME_ORDER, *sorted(k for t in times for k in t)]) if k.startswith("time/")]
    stages = [k for k in stages if k not in rr.NOT_WORK[1:] and any(t.get(k) for t in times)]
    if not drawn and not stages:
        return
    page.begin_grid("Curves", [arm.label for arm in arms], [line for _, lines in drawn for line in lines])
    for plot, lines in drawn:
        page.lines(plot.title, plot.note, lines, is_percent=plot.is_percent, is_noisy=plot.is_noisy, is_grouped=True)
    if stages:
        parts = [k.removeprefix("time/") for k in stages]
        rows = [(n, arms[n].label, [t.get(k, 0.0) for k in stages]) for n, t in enumerate(times) if any(t.values())]
        page.bars("Time per stage", "Of the whole run, evaluation included.", parts, rows, is_wide=len(drawn) % 2 == 0)
    page.end_grid()


def _lines(arms: Sequence[Arm], metric: str) -> list[Line]:
    lines = []
    for number, arm in enumerate(arms):
        matches = [m for name in rr.metric_names(arm.record) if (m := re.fullmatch(metric, name))]
        for match in matches:
            name = f"{arm.label} · {match[1]}" if len(matches) > 1 and match.groups() else arm.label
            lines.append(Line(arm=number, name=name, curve=rr.curve(arm.record, match[0])))
    return lines


def _supervised(page: Page, records: Sequence[RunRecord]) -> None:
    """Loss curves of the stages that learn from texts: one plot per stage name, one line per run."""
    lines: dict[str, list[Line]] = {}
    for number, record in enumerate(records):
        for stage in record.stages or (record,):
            found = rr.curve(stage, "signal/supervised/loss")
            if found.steps:
                lines.setdefault(stage.name, []).append(Line(arm=number, name=record.name, curve=found))
    if lines:
        page.begin_grid("Learning from texts", [], [])
        for name, group in lines.items():
            page.lines(name, "Loss of a step, in nats per token.", group)
        page.end_grid()


def _header(records: Sequence[RunRecord]) -> str:
    title = " and ".join(record.name for record in records)
    times = [t for r in records for part in (r, *r.stages) for row in part.metrics if (t := rr.finite(row.get("time")))]
    until = f"Last step logged {datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC." if times else ""
    states = [
        f"“{r.name}” is {STATUS[r.status]}" if len(records) > 1 else STATUS[r.status].capitalize() for r in records
    ]
    notes = [f"{part.name}: {note}" for r in records for part in (r, *r.stages) for note in part.notes]
    text = f'<p class="brand">codriver report</p><h1>{escape(title)}</h1>'
    text += f'<p class="sub">{escape("; ".join(states))}. {until}</p>'
    return "<header>" + text + "".join(f'<p class="note">{escape(note)}.</p>' for note in notes) + "</header>"


def _settings(records: Sequence[RunRecord]) -> str:
    folds = []
    for record in records:
        for part in (record, *record.stages):
            name = record.name if part is record else f"{record.name} · {part.name}"
            if part.recipe:
                folds.append((f"{name}: recipe.yaml", part.recipe))
        environments = [part.environment for part in (record, *record.stages) if part.environment]
        for place, environment in enumerate(environments):
            if environment not in environments[:place]:
                name = record.name if place == 0 else f"{record.name}, differing"
                folds.append((f"{name}: environment.json", json.dumps(environment, indent=1, ensure_ascii=False)))
    fold = '<details class="fold"><summary>{}</summary><pre tabindex="0">{}</pre></details>'
    return "<h2>Settings</h2>" + "".join(fold.format(escape(a), escape(b)) for a, b in folds) if folds else ""
