import pytest

from codriver.tasks.arithmetic import Arithmetic
from codriver.tasks.mix import Part, draw_prompts


def parts(*shares):
    return [Part(name=f"t{i}", task=Arithmetic(operands=2 + i), share=s, teacher=f"x{i}") for i, s in enumerate(shares)]


def test_steps_are_consecutive_pieces_of_one_stream_whatever_their_size():
    mix = parts(1.0, 2.0)
    whole = draw_prompts(mix, seed=3, step=0, count=24)
    assert [p for step in range(4) for p in draw_prompts(mix, seed=3, step=step, count=6)] == whole


def test_tasks_are_interleaved_by_share_and_carry_their_teacher():
    drawn = draw_prompts(parts(1.0, 3.0), seed=0, step=2, count=200)
    assert sum(p.task == "t1" for p in drawn) == pytest.approx(150, abs=2)
    assert all(p.teacher == p.task.replace("t", "x") for p in drawn)
    assert {p.task for p in drawn[:8]} == {"t0", "t1"}
