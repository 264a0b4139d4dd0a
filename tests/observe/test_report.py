import json
import re

import pytest

from codriver.errors import InputError
from codriver.observe.read_run import comparison_row, read_run
from codriver.observe.report import arms_of, summary_sentences, write_report

EVIL = "</script><script>alert('x')</script><b>&"


def stage(
    folder, *, kind="train", accuracy=(0.1, 0.3, 0.6), begin=1000.0, teacher=False, end="done", tail="", steps=20
):
    """A synthetic stage: an evaluation at the start, in the middle and at the end."""
    rows, folder_events = [], [{"time": begin, "event": "start"}]
    for step in range(steps + 1):
        if kind == "train" and accuracy and step % (steps // 2) == 0:
            value = accuracy[step // (steps // 2)]
            found = {"eval/heldout/accuracy": value, "eval/heldout/pass_at_4": min(1.0, 1.5 * value)}
            rows.append(
                {"step": step, "time": begin + step, "eval/step": step, "eval/longer/accuracy": value / 4} | found
            )
        if step == steps:
            break
        row = {"step": step, "time": begin + step, "time/learn": 0.5, "policy/grad_norm": 1.0 + step}
        if kind == "train":
            row |= {"reward/mean": step / 40, "policy/entropy": 0.7, "completions/mean_length": 31.0}
            row |= {"tokens/generated": 1000, "time/rollout": 1.0, "policy/kl_reference": 0.01 * step}
            row |= {"teacher/long/kl": 0.5, "teacher/kl/task/arithmetic": 0.5, "time/teacher": 0.25} if teacher else {}
        else:
            row |= {"signal/supervised/loss": 2.0 - step / 20, "tokens/generated": 0.0}
        rows.append(row)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    folder_events += [{"time": begin + steps, "event": end, "reason": "all steps done"}] if end else []
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in folder_events))
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\nkind: {kind}\nsteps: {steps}\n# {EVIL}\n")
    (folder / "environment.json").write_text(json.dumps({"python": "3.11.2", "command": [EVIL]}))
    return folder


def staged(folder, tops=(0.2, 0.55, 0.7)):
    stage(folder / "stages" / "sft", kind="sft", begin=0.0)
    for number, (name, top) in enumerate(zip(("rl", "opd", "both"), tops, strict=True)):
        stage(
            folder / "stages" / name, accuracy=(0.05, top / 2, top), begin=1000.0 * (number + 1), teacher=name != "rl"
        )
    rows = [dict(comparison_row(s)) | {"answers_judged": 7} for s in read_run(folder).stages if s.kind == "train"]
    (folder / "comparison.json").write_text(json.dumps({"arms": ["rl", "opd", "both"], "rows": rows}))
    return folder


def page(tmp_path, *folders):
    """(the page without plotly.js, the numbers its script draws)"""
    path = write_report(folders, tmp_path / "out" / "report.html")
    assert path == tmp_path / "out" / "report.html" and path.stat().st_size < 10_000_000
    text = path.read_text()
    assert text.count("plotly.js v") >= 1
    own = re.sub(r"<script>\s*/\*\*\s*\* plotly\.js.*?</script>", "", text, flags=re.DOTALL)
    assert len(own) < 1_000_000
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', own, re.DOTALL)
    return own, json.loads(data[1])["figures"]


def figures_of(own):
    return re.findall(r"<figure[^>]*><figcaption><h3>(.*?)</h3>", own)


def test_a_plain_run_says_where_it_went(tmp_path):
    own, figures = page(tmp_path, stage(tmp_path / "plain"))
    assert "In this run, accuracy on held-out problems (heldout) went from 10.0% to 60.0%." in own
    assert "50% was first seen at step 20 by “plain”." in own
    assert "20,000 generated tokens and 30.0 s of work" in own
    assert "KL to the teacher" not in figures_of(own)
    assert figures_of(own)[:3] == ["Accuracy: heldout", "Accuracy: longer", "Reward"]
    accuracy = figures[0]["series"][0]
    assert accuracy["steps"] == [0, 10, 20] and accuracy["values"] == [0.1, 0.3, 0.6]
    assert accuracy["tokens"] == [0, 10_000, 20_000] and accuracy["seconds"] == [0, 15, 30]
    assert "20 of 20" in own and ">done<" in own


def test_three_arms_are_set_side_by_side(tmp_path):
    own, figures = page(tmp_path, staged(tmp_path / "quick"))
    assert (
        "In this run, “both” ended highest on held-out problems (heldout) with 70.0%; “opd” 55.0%, “rl” 20.0%." in own
    )
    assert "50% was first seen at step 20 by “both” and “opd”" in own or "by “opd” and “both”" in own
    assert "; “rl” did not reach it." in own and "not reached" in own
    assert "small differences may be chance" in own
    table = re.search(r"<h2>Side by side</h2>.*?</table>", own, re.DOTALL)[0]
    assert "heldout pass@4" in table and "steps to 50%" in table and "answers judged" in table
    assert re.search(r"</svg>both</th><td class=best>70.0%</td>", table)
    assert [s["name"] for s in figures[0]["series"]] == ["rl", "opd", "both"]
    kl = next(f for f, title in zip(figures, figures_of(own), strict=True) if title == "KL to the teacher")
    assert [(s["arm"], s["name"]) for s in kl["series"]] == [(1, "opd"), (2, "both")]
    bars = next(f for f in figures if f["type"] == "bars")
    assert bars["parts"] == ["rollout", "teacher", "learn"] and bars["rows"][2]["values"] == [20.0, 5.0, 10.0]
    assert "Learning from texts" in own and "loss 1.0500" in own


def test_nothing_reached_the_target_is_said(tmp_path):
    arms = arms_of([read_run(staged(tmp_path / "low", tops=(0.2, 0.3, 0.3)))])
    said = summary_sentences(arms)
    assert said[0] == "In this run, “opd” and “both” ended level on held-out problems (heldout) with 30.0%; “rl” 20.0%."
    assert said[1] == "Nothing reached 50% in this run."


def test_a_comparison_that_names_its_own_target_is_quoted_with_it(tmp_path):
    folder = staged(tmp_path / "quick")
    written = json.loads((folder / "comparison.json").read_text())
    for row, step in zip(written["rows"], (None, 12, 8), strict=True):
        del row["steps_to_50"]
        row |= {"target": 0.35, "steps_to_target": step, "eval/heldout/pass_at_1": 0.1, "eval/heldout/mean_length": 5.0}
    (folder / "comparison.json").write_text(json.dumps(written))
    own, _ = page(tmp_path, folder)
    assert "35% was first seen at step 8 by “both”, at step 12 by “opd”; “rl” did not reach it." in own
    assert "steps to 35%" in own and "pass@1" not in own and "eval/" not in re.search(r"<table>.*?</table>", own)[0]


def test_a_killed_run_is_reported_with_what_it_has(tmp_path):
    own, _ = page(tmp_path, stage(tmp_path / "killed", end="", tail='{"step": 21, "rewa'))
    assert "the last line (24) is cut and was left out" in own
    assert "“killed” is not finished (running, or killed)" in own and "Not finished" in own


def test_a_run_without_evaluation_claims_nothing_about_unseen_problems(tmp_path):
    own, _ = page(tmp_path, stage(tmp_path / "blind", accuracy=()))
    assert "No held-out evaluation is logged in this run" in own
    assert "“blind”: mean reward on its own training prompts 0.050 at first, 0.425 at last." in own
    assert not any(title.startswith("Accuracy") for title in figures_of(own))
    assert "50%" not in re.search(r'<section class="summary".*?</section>', own, re.DOTALL)[0]


def test_stages_that_are_still_missing_leave_no_empty_frame(tmp_path):
    stage(tmp_path / "begun" / "stages" / "sft", kind="sft", end="")
    own, figures = page(tmp_path, tmp_path / "begun")
    assert figures_of(own) == ["sft"] and all(f["series"] for f in figures)
    assert figures[0]["series"][0]["tokens"] is None and figures[0]["series"][0]["steps"][-1] == 19


def test_several_runs_keep_their_names_apart(tmp_path):
    own, figures = page(tmp_path, stage(tmp_path / "one" / "same"), stage(tmp_path / "two" / "same"))
    assert [s["name"] for s in figures[0]["series"]] == ["same (1)", "same (2)"]
    assert "In these runs, “same (1)” and “same (2)” ended level" in own


def test_all_text_is_escaped_and_the_data_cannot_end_its_script(tmp_path):
    folder = stage(tmp_path / "<i>run & co")
    row = {"step": 0, "teacher/<img src=x>/kl": 0.5, "teacher/b/kl": 0.1, f"eval/{EVIL}/accuracy": 0.25}
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    own, figures = page(tmp_path, folder)
    assert "<script>alert" not in own and "<img" not in own and "<i>" not in own and "<b>&" not in own
    assert "&lt;i&gt;run &amp; co" in own and "&lt;script&gt;alert(&#x27;x&#x27;)" in own
    assert any("<img src=x>" in s["name"] for f in figures for s in f.get("series", ()))
    assert own.count("<script") == own.count("</script>") == 2


def test_the_page_loads_nothing_from_the_network(tmp_path):
    own, _ = page(tmp_path, staged(tmp_path / "quick"))
    assert not re.search(r"https?://", own)
    assert not re.search(r"(src|href)\s*=|url\(|@import|<link|<iframe|fetch\(", own)
    text = (tmp_path / "out" / "report.html").read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", text)
    assert "default-src 'none'" in own and "prefers-color-scheme: dark" in own and "width=device-width" in own


def test_a_long_run_stays_small(tmp_path):
    own, figures = page(tmp_path, stage(tmp_path / "long", steps=6000, accuracy=(0.1, 0.2, 0.3)))
    reward = next(f for f, title in zip(figures, figures_of(own), strict=True) if title == "Reward")["series"][0]
    assert len(reward["steps"]) == len(reward["values"]) == 2000
    assert reward["steps"][0] == 0 and reward["steps"][-1] == 5999


def test_no_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no run folder given"):
        write_report([], tmp_path / "report.html")
