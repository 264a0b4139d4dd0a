import asyncio
import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from codriver.verify.workers import JobFailed, NoWorker, WorkerPool

JOB = "tests.verify.worker_jobs:do"


@pytest.fixture
def make_pool():
    pools = []

    def make(size=1, limit_s=1.0, **changes):
        pools.append(WorkerPool(JOB, size=size, limit_s=limit_s, **changes))
        pools[-1].ask({"do": "echo", "value": 0})  # started, so that times below are of the requests alone
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("how", ["hang", "deaf"])
def test_a_request_that_hangs_is_ended_at_the_limit_and_the_next_one_is_answered(make_pool, how):
    pool = make_pool()
    start = time.monotonic()
    with pytest.raises(JobFailed, match="no answer within 1 s") as caught:
        pool.ask({"do": how})
    assert caught.value.kind == "time" and 0.9 < time.monotonic() - start < 3
    assert pool.ask({"do": "echo", "value": [1, "a"]}) == [1, "a"]


def test_a_process_that_is_ended_is_gone(make_pool):
    pool = make_pool(limit_s=0.5)
    pid = pool.ask({"do": "pid"})
    with pytest.raises(JobFailed):
        pool.ask({"do": "hang"})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("request_", "kind", "detail"),
    [
        ({"do": "memory"}, "memory", "more than 1024 MB were needed"),
        ({"do": "exit"}, "crash", "the process ended with code 3"),
        ({"do": "raise"}, "error", "KeyError: 'nothing there'"),
    ],
)
def test_each_failure_says_what_it_was_and_the_next_request_is_answered(make_pool, request_, kind, detail):
    pool = make_pool(limit_s=5)
    with pytest.raises(JobFailed, match=detail) as caught:
        pool.ask(request_)
    assert caught.value.kind == kind
    assert pool.ask({"do": "echo", "value": 5}) == 5


def test_waiting_for_a_free_process_costs_nothing_of_the_limit(make_pool):
    pool = make_pool(size=1, limit_s=1.0)
    start = time.monotonic()
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: pool.ask({"do": "sleep", "s": 0.3}), range(6)))
    assert answers == ["slept"] * 6
    assert time.monotonic() - start > 1.8  # the last one waited longer than the limit


def test_an_answer_that_came_in_time_counts_when_the_asking_thread_was_held_up(make_pool):
    pool = make_pool(limit_s=1.0)

    async def scene():
        asked = asyncio.create_task(asyncio.to_thread(pool.ask, {"do": "sleep", "s": 0.2}))
        await asyncio.sleep(0.05)
        # Called through PyDLL the sleep keeps the interpreter lock: event loop and asking thread both stand still.
        ctypes.PyDLL(None).usleep(2_000_000)
        return await asked

    assert asyncio.run(scene()) == "slept"


def test_threads_get_their_own_answers(make_pool):
    pool = make_pool(size=3, limit_s=5)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: pool.ask({"do": "echo", "value": n}), range(300)))
    assert answers == list(range(300))


def test_a_job_that_prints_does_not_answer_with_it(make_pool):
    assert make_pool().ask({"do": "speak"}) == "me"


def test_the_process_imports_its_job_and_nothing_heavy(make_pool):
    names = ["torch", "transformers", "pytest", "tests.verify.worker_jobs"]
    assert make_pool().ask({"do": "modules", "names": names}) == ["tests.verify.worker_jobs"]


def test_a_process_is_replaced_after_its_number_of_uses(make_pool):
    pool = make_pool(max_uses=2)
    pids = [pool.ask({"do": "pid"}) for _ in range(4)]  # one use went before
    assert pids[0] != pids[1] == pids[2] != pids[3]


def test_a_process_that_died_while_idle_is_replaced(make_pool):
    pool = make_pool()
    pid = pool.ask({"do": "pid"})
    os.kill(pid, 9)
    time.sleep(0.2)
    assert pool.ask({"do": "pid"}) != pid


def test_a_job_that_cannot_be_imported_says_so():
    pool = WorkerPool("tests.verify.no_such_module:do", size=1, limit_s=1)
    with pytest.raises(NoWorker, match="did not start: .*No module named 'tests.verify.no_such_module'"):
        pool.ask({})


def test_a_request_that_does_not_fit_into_a_pipe_is_refused(make_pool):
    with pytest.raises(ValueError, match="expected at most 60000"):
        make_pool().ask({"do": "echo", "value": "x" * 70_000})


def test_a_forked_child_uses_processes_of_its_own(make_pool):
    pool = make_pool()
    mine = pool.ask({"do": "pid"})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(pool.ask({"do": "pid"})).encode())
        pool.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 100)) != mine
    assert pool.ask({"do": "pid"}) == mine
    os.close(read), os.close(write)


def test_closing_ends_the_processes_and_leaves_the_pool_usable(make_pool):
    pool = make_pool()
    pid = pool.ask({"do": "pid"})
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pool.ask({"do": "echo", "value": 1}) == 1
