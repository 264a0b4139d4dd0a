"""The page that the report fills: its figures, tables and legend. Look and scripts: `report_template.html`."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from codriver.observe.read_run import EVAL, Curve, finite

POINTS = 60_000
"""Points in the page, all curves together: keeps the file below 10 MB however long the run."""
MAX_POINTS = 2_000
"""Points of one curve; more cannot be told apart on a screen."""
MAX_ROWS = 12
"""Rows in the table of numbers under a plot."""
DASHES = ("", "7 4", "2 3", "7 3 2 3", "11 4", "11 3 2 3")
AXES = ("steps", "tokens", "seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One curve of one plot. `arm` picks colour and dash."""

    arm: int
    name: str
    curve: Curve


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """One plot of the arms: every metric whose name matches, one line per arm and match."""

    metric: str
    """A regular expression for the whole name; what its group matched names the line where there are several."""
    title: str
    note: str
    is_percent: bool = False
    is_noisy: bool = True
    """One value per step; smoothed on request. Else few values, each marked."""


PLOTS = (
    Plot(metric="reward/mean", title="Reward", note="Mean over the sampled rollouts of a step, on training prompts."),
    Plot(
        metric=r"teacher/([^/]+)/kl",
        title="KL to the teacher",
        note="KL(student ‖ teacher) on the student's own tokens, in nats per token.",
    ),
    Plot(
        metric="policy/kl_reference",
        title="KL to the reference",
        note="How far the student has moved from where the stage began, in nats per token.",
    ),
    Plot(metric="policy/entropy", title="Entropy", note="Of the student's next-token distribution, in nats."),
    Plot(metric="completions/mean_length", title="Completion length", note="Mean tokens of a completion."),
    Plot(
        metric="completions/clipped_ratio",
        title="Completions cut by the length limit",
        note="Share of the step's completions that did not end on their own.",
        is_percent=True,
    ),
    Plot(metric="policy/grad_norm", title="Gradient norm", note="Before clipping."),
)


@dataclass(kw_only=True, slots=True)
class Page:
    """Collects the parts of the page in order, and the numbers that its script draws."""

    title: str
    parts: list[str] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, html: str) -> None:
        self.parts.append(html)

    def begin_grid(self, title: str, labels: Sequence[str], lines: Sequence[Line]) -> None:
        """A section of figures; with labels, under the legend and the switches that act on every plot."""
        axes = [a for a in AXES if any(_axis(line.curve, a) for line in lines)]
        self.add(f"<section><h2>{escape(title)}</h2>{_toolbar(labels, axes) if labels else ''}<div class='grid'>")

    def end_grid(self) -> None:
        self.add("</div></section>")

    def lines(
        self,
        title: str,
        note: str,
        lines: Sequence[Line],
        *,
        is_percent: bool = False,
        is_noisy: bool = True,
        is_grouped: bool = False,
    ) -> None:
        """A plot of curves. Grouped: its lines belong to the arms of the legend, which can hide them."""
        drawn: list[dict[str, Any]] = [
            {"arm": line.arm, "name": line.name, "values": list(line.curve.values)}
            | {axis: _axis(line.curve, axis) for axis in AXES}
            for line in lines
        ]
        facts = {"type": "lines", "percent": is_percent, "noisy": is_noisy, "grouped": is_grouped, "series": drawn}
        form = ".1%" if is_percent else ".4g"
        ends = [(line.arm, line.name, f"{line.curve.values[-1]:{form}}") for line in lines]
        alone = len(lines) == 1 and not is_grouped
        self._figure(title, note, facts, [(a, "" if alone else n, v) for a, n, v in ends], _numbers(lines, form))

    def bars(
        self,
        title: str,
        note: str,
        parts: Sequence[str],
        rows: Sequence[tuple[int, str, Sequence[float]]],
        *,
        is_wide: bool,
    ) -> None:
        """Stacked horizontal bars: one per (arm, label, value of each part)."""
        facts: dict[str, Any] = {"type": "bars", "parts": list(parts)}
        facts["rows"] = [{"arm": arm, "name": name, "values": list(values)} for arm, name, values in rows]
        head = "<th scope=col>arm</th>" + "".join(f"<th scope=col>{escape(part)}, s</th>" for part in parts)
        body = [
            f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td>{v:,.1f}</td>' for v in values)}</tr>"
            for _, name, values in rows
        ]
        ends = [(arm, name, duration(sum(values))) for arm, name, values in rows]
        numbers = table(f"{title}: numbers", head, body)
        self._figure(title, note, facts, ends, numbers, height=max(280, 140 + 44 * len(rows)), is_wide=is_wide)

    def _figure(
        self,
        title: str,
        note: str,
        facts: dict[str, Any],
        ends: Sequence[tuple[int, str, str]],
        numbers: str,
        *,
        height: int = 0,
        is_wide: bool = False,
    ) -> None:
        name = f"figure-{len(self.figures)}"
        self.figures.append({"id": name} | facts)
        last = "".join(f"<li>{key_of(arm)}{escape(label)} <b>{escape(value)}</b></li>" for arm, label, value in ends)
        spoken = f"{title}. " + "; ".join(f"{label} {value}" for _, label, value in ends)
        size = f' style="height:{height}px"' if height else ""
        self.add(
            f"<figure{' class=wide' if is_wide else ''}><figcaption><h3>{escape(title)}</h3>"
            f'<p class="note">{escape(note)}</p><ul class="ends" aria-label="Last values">{last}</ul></figcaption>'
            f'<div class="plot" id="{name}" role="img" aria-label="{escape(spoken)}"{size}></div>'
            f"<details><summary>Numbers</summary>{numbers}</details></figure>"
        )

    def html(self) -> str:
        """The whole page, plotly.js included."""
        curves = [s for figure in self.figures for s in figure.get("series", ())]
        stride_points = max(50, min(MAX_POINTS, POINTS // max(len(curves), 1)))
        for one in curves:
            for axis in ("values", *AXES):
                one[axis] = one[axis] and _thinned(one[axis], stride_points)
        data = json.dumps({"figures": self.figures}, allow_nan=False, separators=(",", ":"))
        filled = {
            "title": escape(self.title),
            "body": "\n".join(part for part in self.parts if part),
            "data": data.replace("<", "\\u003c"),
            "plotly": re.sub(r"</(?=script)", r"<\\/", str(get_plotlyjs()), flags=re.IGNORECASE),
        }
        template = files("codriver.observe").joinpath("report_template.html").read_text(encoding="utf-8")
        return re.sub(r"@@(\w+)@@", lambda match: filled[match[1]], template)


def table(label: str, head: str, rows: Iterable[str]) -> str:
    """A table that scrolls sideways in its own box. `head` and `rows` are HTML, `label` is text."""
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{inner}</div>'


def heading(key: str) -> str:
    """
    >>> heading("eval/heldout/pass_at_4"), heading("steps_to_50"), heading("time/rollout"), heading("num_prompts")
    ('heldout pass@4', 'steps to 50%', 'rollout,\\xa0s', 'num prompts')
    """
    if match := EVAL.fullmatch(key):
        return f"{match['set']} {match['what'].replace('pass_at_', 'pass@')}"
    if match := re.fullmatch(r"steps_to_(\d+)", key):
        return f"steps to {match[1]}%"
    return f"{key.removeprefix('time/')},\N{NO-BREAK SPACE}s" if key.startswith("time/") else key.replace("_", " ")


def is_share(key: str) -> bool:
    return EVAL.fullmatch(key) is not None


def cell(key: str, value: object, *, is_best: bool) -> str:
    number = finite(value)
    if number is None:
        text = "not reached" if key.startswith("steps_to_") else "–" if value is None else str(value)
    elif is_share(key):
        text = f"{number:.1%}"
    elif key.startswith("time/"):
        text = f"{number:,.1f}"
    else:
        text = f"{number:,.0f}" if number == int(number) else f"{number:,.1f}" if abs(number) >= 10 else f"{number:.4g}"
    return f"<td{' class=best' if is_best else ''}>{escape(text)}</td>"


def key_of(arm: int) -> str:
    """The piece of line that stands for an arm, in its colour and dash."""
    dash = f' stroke-dasharray="{DASHES[arm % 6]}"' if arm % 6 else ""
    line = f'<line x1="0" y1="6" x2="30" y2="6" stroke="var(--a{arm % 7})" stroke-width="3"{dash}/>'
    return f'<svg class="key" viewBox="0 0 30 12" aria-hidden="true">{line}</svg>'


def duration(seconds: float) -> str:
    """
    >>> duration(8.25), duration(312), duration(7384)
    ('8.2 s', '5 min 12 s', '2 h 3 min')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def joined(names: Sequence[str]) -> str:
    """
    >>> joined(["a"]), joined(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _axis(curve: Curve, axis: str) -> list[float] | None:
    """The x values; None when the run did not count them."""
    values = [round(v, 3) for v in getattr(curve, axis)]
    return values if any(values) or axis == "steps" else None


def _thinned(values: Sequence[float], points: int) -> list[float]:
    """Evenly chosen elements, the first and the last among them."""
    if len(values) <= points:
        return list(values)
    return [values[round(i * (len(values) - 1) / (points - 1))] for i in range(points)]


def _numbers(lines: Sequence[Line], form: str) -> str:
    columns = [dict(zip(line.curve.steps, line.curve.values, strict=True)) for line in lines]
    steps = [int(s) for s in _thinned(sorted({s for column in columns for s in column}), MAX_ROWS)]
    head = "<th scope=col>step</th>" + "".join(f"<th scope=col>{escape(line.name)}</th>" for line in lines)
    body = []
    for step in steps:
        cells = "".join(f"<td>{format(column[step], form) if step in column else '–'}</td>" for column in columns)
        body.append(f"<tr><th scope=row>{step:,}</th>{cells}</tr>")
    return table("Numbers behind the plot", head, body)


def _toolbar(labels: Sequence[str], axes: Sequence[str]) -> str:
    arms = "".join(
        f'<button type="button" class="pill" data-arm="{n}" aria-pressed="true">{key_of(n)}{escape(label)}</button>'
        for n, label in enumerate(labels)
    )
    radios = "".join(
        f'<label class="pill"><input type="radio" name="x" value="{a}"{" checked" if a == "steps" else ""}>{a}</label>'
        for a in axes
    )
    shown = f"<fieldset><legend>Show</legend>{arms}</fieldset>" if len(labels) > 1 else ""
    switch = f"<fieldset><legend>Compare on</legend>{radios}</fieldset>" if len(axes) > 1 else ""
    smooth = '<label class="pill"><input type="checkbox" id="smooth" checked>Smooth</label>'
    note = '<p class="note">Smooth: thick lines are means of neighbouring steps, faint lines the steps themselves.</p>'
    return f'<div class="toolbar">{shown}{switch}{smooth}</div>{note}'
