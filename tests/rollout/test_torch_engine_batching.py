"""How the engine fills its slots: shared and ragged prefills, refills, and the forwards that it does not make."""

from typing import Any

from tests.rollout.engines import build, crowd, engine, finish, request


class Forwards:
    """Counts the model's forwards: shapes of input ids."""

    def __init__(self, model: Any) -> None:
        self.shapes: list[tuple[int, int]] = []
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: Any, __: Any, kwargs: dict[str, Any]) -> None:
        self.shapes.append(tuple(kwargs["input_ids"].shape))

    @property
    def prefills(self) -> list[tuple[int, int]]:
        return [shape for shape in self.shapes if shape[1] > 1]

    @property
    def decodes(self) -> list[int]:
        return [rows for rows, width in self.shapes if width == 1]


def test_requests_for_one_prompt_share_one_prefill_even_when_they_do_not_fit_at_once():
    model = build()
    forwards = Forwards(model)
    prompts = [list(range(9)), list(range(5)), list(range(9))]
    requests = [request((p, n), prompts[p], seed=n) for n in range(4) for p in range(3)]
    done = finish(engine(model, max_slots=3), requests)
    assert len(done) == 12 and sorted(forwards.prefills) == [(1, 4), (1, 8)]
    shared = finish(engine(build(), max_slots=1), [request("(2, 3)", prompts[2], seed=3)])
    assert shared["(2, 3)"].token_ids.tolist() == done["(2, 3)"].token_ids.tolist()


def test_ragged_prompts_are_prefilled_together_within_the_budget_sorted_by_length():
    model = build()
    forwards = Forwards(model)
    requests = [request(n, [n] * length) for n, length in enumerate([3, 11, 1, 6, 11, 2, 9])]
    finish(engine(model, max_slots=8, prefill_tokens=20), requests)
    # Lengths less the last token: 10 10 | 8 5 | 2 and a 1 that fits with it; the prompt of one token needs no prefill.
    assert forwards.prefills == [(2, 10), (2, 8), (2, 2)]


def test_a_prompt_longer_than_the_budget_is_prefilled_alone():
    model = build()
    forwards = Forwards(model)
    finish(engine(model, prefill_tokens=4), [request(0, [1] * 30), request(1, [2] * 30)])
    assert forwards.prefills == [(1, 29), (1, 29)]


def test_freed_slots_are_refilled_at_once_and_no_dead_row_is_computed():
    model = build()
    forwards = Forwards(model)
    lengths = [7, 2, 5, 1, 4, 3, 6]
    done = finish(engine(model, max_slots=3), [request(n, max_tokens=m, seed=n) for n, m in enumerate(lengths)])
    assert [len(done[str(n)].token_ids) for n in range(7)] == lengths
    assert sum(forwards.decodes) == sum(lengths)
    assert forwards.decodes == sorted(forwards.decodes, reverse=True) and forwards.decodes[0] == 3


def test_requests_may_come_while_others_run():
    model, requests = build(), crowd(6)
    running = engine(model, max_slots=4)
    running.submit(requests[:3])
    done = {c.id: c for _ in range(4) for c in running.step()}
    done |= finish(running, requests[3:])
    expected = finish(engine(model), requests)
    assert {n: c.token_ids.tolist() for n, c in done.items()} == {n: c.token_ids.tolist() for n, c in expected.items()}
    assert running.step() == []


def test_each_of_several_stop_ids_ends_a_completion_and_stays_part_of_it():
    model = build()
    free = finish(engine(model), [request(0, max_tokens=30)])["0"].token_ids.tolist()
    stops = (free[9], free[4])
    got = finish(engine(model), [request(0, max_tokens=30, stop_ids=stops), request(1, max_tokens=30)])
    end = min(free.index(s) for s in stops)
    assert got["0"].finish == "stop" and got["0"].token_ids.tolist() == free[: end + 1]
    assert got["1"].finish == "length" and got["1"].token_ids.tolist() == free
