"""docs/estimators.md says what the signals do today, and its key rows say what the theory says."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.estimators_page import PAGE, ROWS, State, measured, verdict

from codriver.signals.legality import OPTIMISES, USES

ROOT = Path(__file__).parents[1]
LINES = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line]
ROW = {row.label: row for rows in ROWS.values() for row in rows}


def cell(label, use):
    (line,) = [line for line in LINES if line[0] == label and len(line) == 6]
    return line[2 + USES.index(use)]


def test_the_page_is_what_the_signals_and_the_results_give():
    assert subprocess.run([sys.executable, ROOT / "tools" / "estimators_page.py", "--check"]).returncode == 0


@pytest.mark.parametrize(
    ("label", "use", "start"),
    [
        ("k1 = log p/q", "back_propagated", "refused; **nothing**"),
        ("k1 = log p/q", "policy_gradient", "**reverse KL** (cosine 1.0000, × 1)"),
        ("k2 = k1² / 2", "back_propagated", "**reverse KL** (cosine 1.0000, × 1)"),
        ("k3 = q/p - 1 + k1", "back_propagated", "**forward KL** (cosine 1.0000, × 1)"),
        ("k3 = q/p - 1 + k1", "policy_gradient", "refused; **reverse KL minus forward KL** (cosine 1.0000, × 1"),
        ("reverse KL", "policy_gradient", "refused; **nothing**"),
        ("reverse KL", "back_propagated", "**reverse KL** (cosine 1.0000, × 1)"),
        ("log-ratio with the state's KL as baseline (vOPD)", "policy_gradient", "**reverse KL** (cosine 1.0000, × 1)"),
        ("top-3 reverse KL, `generalized`", "back_propagated", "**the list's part of reverse KL** (cosine 1.0000, × 1"),
    ],
)
def test_the_key_rows_of_the_page(label, use, start):
    assert cell(label, use).startswith(start)


def test_no_whole_position_estimator_teaches_as_an_advantage():
    labels = [label for label, row in ROW.items() if row.legal_name == "state_kl"]
    assert len(labels) >= 18
    assert all(cell(label, "policy_gradient") == "refused; **nothing**: 0" for label in labels)


@pytest.mark.parametrize(
    ("label", "name"), [("k1 = log p/q", "k1"), ("k2 = k1² / 2", "k2"), ("reverse KL", "state_kl")]
)
def test_the_page_agrees_with_the_table_of_legality(label, name):
    for use in ("policy_gradient", "back_propagated"):
        claim = OPTIMISES[name, use]
        assert f"**{claim}**" in cell(label, use) or claim == "not a KL" and "none of the named" in cell(label, use)


def test_a_changed_estimator_changes_its_verdict():
    row = ROW["k2 = k1² / 2"]
    wrong = type(row)("k1", row.function, ROW["k1 = log p/q"].values)
    assert verdict(row, "back_propagated") != verdict(wrong, "back_propagated") == "**nothing**: 0"
    assert float(measured(row, "back_propagated", State(0)).norm()) > 0.1
