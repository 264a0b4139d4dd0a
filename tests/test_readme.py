import re
import subprocess
import sys
from pathlib import Path

import pytest

from codriver.cli import read_plan

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_table_of_the_readme_is_what_its_results_file_says():
    assert subprocess.run([sys.executable, ROOT / "tools" / "readme_table.py", "--check"]).returncode == 0


def test_the_recipe_of_the_readme_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f'{{"prompt": "{i}+1", "answer": "{i + 1}", "solution": "{i + 1}"}}' for i in range(50))
    (tmp_path / "problems.jsonl").write_text(rows)
    (tmp_path / "recipe.yaml").write_text(re.search(r"```yaml\n(.*?)```", README, re.DOTALL).group(1))
    assert read_plan("recipe.yaml", []).stages[0].signals.distill.clip == 5.0


@pytest.mark.parametrize(
    "path",
    sorted(
        set(re.findall(r"`((?:src|docs|recipes|benchmarks|tools|tests)/[\w./-]*)`", README))
        | set(re.findall(r"\]\((\S+?)\)", README))
    ),
)
def test_every_path_in_the_readme_exists(path):
    assert (ROOT / path).exists()
