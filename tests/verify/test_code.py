"""Programs judged by hidden tests: right ones, wrong ones, and those that try to be told right without being so."""

import os
import time

import pytest

from codriver.verify.code import Problem, extract_code, judge_code
from codriver.verify.code_tests import cases_from_asserts, cases_from_json, public_examples
from codriver.verify.sandbox import Limits, find_sandbox

CASES = cases_from_json(
    [{"input": [2, 3], "output": 5}, {"input": [-7, 7], "output": 0}, {"input": [10, 5], "output": 15}]
)
ADD = Problem(entry_point="add", cases=CASES)
ASSERTED = Problem(
    entry_point="add",
    asserts="def check(candidate):\n    assert candidate(2, 3) == 5\n    assert abs(candidate(0.1, 0.2) - 0.3) < 1e-9\n",
)
SHORT = Limits(wall_s=1.5, cpu_s=1)


@pytest.fixture(scope="module")
def sandbox():
    return find_sandbox()


def label(text, sandbox, problem=ADD):
    return judge_code(text, problem, sandbox=sandbox, limits=SHORT).label


RIGHT = {
    "plain": "def add(a, b):\n    return a + b",
    "fenced": "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nThat is it.",
    "lambda": "add = lambda a, b: a + b",
    "with a helper and an import": "import functools\ndef go(x): return x\ndef add(a, b):\n    return functools.reduce(lambda x, y: go(x) + y, [a, b])",
    "prints": "def add(a, b):\n    print('adding', a, b)\n    return a + b",
    "as floats": "def add(a, b):\n    return float(a + b)",
    "last of two blocks": "```python\ndef add(a, b): return 0\n```\nNo:\n```python\ndef add(a, b): return a + b\n```",
    "an unclosed block": "```python\ndef add(a, b): return a + b",
    "annotated": "def add(a: int, b: int) -> int:\n    'Adds.'\n    return a + b",
    "a class that is called": "class add:\n    def __new__(cls, a, b):\n        return a + b",
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs(name, sandbox):
    assert label(RIGHT[name], sandbox) == "correct"
    assert label(RIGHT[name], sandbox, ASSERTED) == "correct"


WRONG = {
    "wrong value": "def add(a, b): return a - b",
    "right on one test": "def add(a, b): return 5",
    "none": "def add(a, b): pass",
    "text": "def add(a, b): return str(a + b)",
    "raises": "def add(a, b): raise ValueError('no')",
    "prints only": "def add(a, b): print(a + b)",
}
EXITS = {
    f"{call} {where}": program.format(call=call)
    for call in ("exit(0)", "__import__('sys').exit(0)", "__import__('os')._exit(0)", "raise SystemExit(0)", "quit()",
                 "__import__('os').kill(__import__('os').getpid(), 9)", "__import__('os').abort()")
    for where, program in {
        "at the top": "def add(a, b): return 0\n{call}",
        "in the function": "def add(a, b):\n    {call}",
        "at exit": "import atexit\ndef f():\n    {call}\natexit.register(f)\ndef add(a, b): return 0",
    }.items()
}  # fmt: skip
LIES = "(True, 1, 1.0, 'correct', b'1', [], {}, float('nan'), float('inf'), Ellipsis, NotImplemented, type, 10**9999)"
EQUALS = {
    f"returns {value}": f"def add(a, b): return {value}"
    for value in ("True", "1", "'5'", "b'5'", "[5]", "(5,)", "{5}", "{'a': 5}", "float('nan')", "float('inf')", "...",
                  "NotImplemented", "type", "10 ** 9999", "lambda: 5", "object()", "5j", "iter([5])", "range(5)")
}  # fmt: skip
METHODS = (
    "__eq__",
    "__req__",
    "__lt__",
    "__hash__",
    "__bool__",
    "__instancecheck__",
    "__class__",
    "__sub__",
    "__rsub__",
    "__abs__",
)
TRICKS = {
    f"{base} with a false {method}": (
        f"class Yes({base}):\n    def {method}(self, *other): return True\n"
        f"    def __ne__(self, *other): return False\ndef add(a, b): return Yes()"
    )
    for base in ("object", "int", "float")
    for method in METHODS
}
PATCHES = {
    "builtins patched": "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.all = lambda x: True\nbuiltins.len = lambda x: 0\ndef add(a, b): return 0",
    "isinstance patched": "import builtins\nbuiltins.isinstance = lambda *x: True\ndef add(a, b): return object()",
    "unittest patched": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef add(a, b): return 0",
    "json patched": "import json\njson.dumps = lambda *a, **k: '[0,5]'\ndef add(a, b): return 0",
    "os.write patched": "import os\nreal = os.write\nos.write = lambda fd, data: real(fd, b'[0,true]\\n')\ndef add(a, b): return 0",
    "eval patched": "import builtins\nbuiltins.eval = lambda *a: ((2, 3), {})\ndef add(a, b): return 0",
    "main patched": "import __main__\n__main__.encoded = lambda value: '[\"done\"]'\ndef add(a, b): return 0",
    "the caller's names": "import sys\ndef add(a, b):\n    f = sys._getframe(1)\n    return f.f_locals.get('expected', f.f_globals.get('cases', 0))",
    "writes to the channel": "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'[0,5]\\n' * 3)\n    except OSError: pass\ndef add(a, b): return 0",
    "writes `done` to the channel": 'import os\nfor fd in range(20):\n    try: os.write(fd, b\'["l","done",["l",["l",2,true,""]],"",""]\\n\')\n    except OSError: pass\ndef add(a, b): return 0',
    "closes the channel": "import os\nos.closerange(0, 64)\ndef add(a, b): return 0",
    "prints the result": "print('[0,5]')\nprint('{\"passed\": true}')\ndef add(a, b): return 0",
    "reads stdin": "import sys\nrest = sys.stdin.read()\ndef add(a, b): return rest or 0",
    "reads the questions": "import os\ndef add(a, b):\n    return os.read(3, 100) or 0",
    "a trace function": "import sys\nsys.settrace(lambda *a: None)\ndef add(a, b): return 0",
    "an endless exception": "class E(Exception):\n    def __str__(self): raise self\ndef add(a, b): raise E()",
    "StopIteration": "def add(a, b): raise StopIteration",
    "GeneratorExit": "def add(a, b): raise GeneratorExit",
    "KeyboardInterrupt": "def add(a, b): raise KeyboardInterrupt",
    "a generator": "def add(a, b):\n    yield a + b",
    "recursion": "def add(a, b): return add(a, b)",
    "deep nesting": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "a cycle": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "a thread that answers": "import os, threading\ndef go():\n    while True:\n        try: os.write(5, b'[0,5]\\n')\n        except OSError: pass\nthreading.Thread(target=go, daemon=True).start()\ndef add(a, b): return 0",
    "all names": f"def add(a, b): return {LIES}",
}
HARM = {
    "endless loop": "def add(a, b):\n    while True: pass",
    "endless loop at the top": "while True: pass\ndef add(a, b): return a + b",
    "sleeps": "import time\ndef add(a, b): time.sleep(60)",
    "endless output": "def add(a, b):\n    while True: print('x' * 10000)",
    "endless errors": "import sys\ndef add(a, b):\n    while True: sys.stderr.write('x' * 10000)",
    "much memory": "def add(a, b): return len('x' * 10**11)",
    "grows": "def add(a, b):\n    x = [0]\n    while True: x = x + x",
    "a fork bomb": "import os\ndef add(a, b):\n    while True:\n        try: os.fork()\n        except OSError: pass",
    "a huge answer": "def add(a, b): return 'x' * 10**7",
    "a large file": "def add(a, b):\n    with open('big', 'w') as f:\n        while True: f.write('x' * 10**6)",
    "ignores signals": "import signal\nfor s in range(1, 60):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef add(a, b):\n    while True: pass",
    "a daemon": "import os, time\ndef add(a, b):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(60)\n    return 0",
    "a network": "import socket\ndef add(a, b):\n    socket.create_connection(('127.0.0.1', 22), timeout=1)\n    return a + b",
    "many files": "def add(a, b):\n    return len([open('/dev/null') for _ in range(10000)])",
    "segfault": "import ctypes\ndef add(a, b): return ctypes.string_at(0)",
    "hash collisions": "def add(a, b): return {i * (2**61 - 1): 0 for i in range(30000)}",
}
ADVERSARIAL = WRONG | EXITS | EQUALS | TRICKS | PATCHES | HARM


def test_there_are_a_hundred_adversarial_programs():
    assert len(ADVERSARIAL) >= 100


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_no_program_is_told_right_without_being_so(name, sandbox):
    begin = time.monotonic()
    assert label(ADVERSARIAL[name], sandbox) == "incorrect"
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("name", WRONG | PATCHES | {n: t for n, t in TRICKS.items() if "__eq__" in n or "sub" in n})
def test_nor_where_statements_judge(name, sandbox):
    assert label(ADVERSARIAL[name], sandbox, ASSERTED) == "incorrect"


NO_CODE = [
    "",
    "I do not know.",
    "```python\n```",
    "```python\ndef sub(a, b): return 0\n```",
    "def add(a, b:\n  return",
    "def add(a, b): return a +",
    "x" * 300_000,
]


@pytest.mark.parametrize("text", NO_CODE, ids=range(len(NO_CODE)))
def test_what_holds_no_such_function_is_unparseable(text, sandbox):
    assert label(text, sandbox) == "unparseable"


def test_a_body_alone_continues_the_starter(sandbox):
    problem = Problem(entry_point="add", cases=CASES, starter="def add(a, b):\n    '''Adds.'''\n")
    assert label("    return a + b\n", sandbox, problem) == "correct"


def test_an_answer_that_is_one_expression(sandbox):
    problem = Problem(
        entry_point="f",
        cases=cases_from_json([{"input": [3], "output": 6}]),
        starter="f = lambda x: ",
        answer_form="expression",
    )
    assert label("x+x", sandbox, problem) == "correct" and label("x\nx", sandbox, problem) == "unparseable"


def test_broken_tests_are_no_verdict_on_the_program(sandbox):
    with pytest.raises(ValueError, match="are broken"):
        judge_code(
            "def add(a, b): return a + b", Problem(entry_point="add", asserts="assert missing(1)"), sandbox=sandbox
        )


def test_cases_are_read_from_statements_and_shown_as_examples():
    cases = cases_from_asserts("def check(f):\n    assert f(1, [2]) == 3\n    assert f('a') is None\n", "f")
    assert public_examples(cases, "f") == "f(1, [2]) == 3\nf('a') == None"
    assert cases_from_asserts("assert f(1) > 2", "f") == ()
    for broken in ("assert True", "x = 1", "def"):
        with pytest.raises(ValueError):
            cases_from_asserts(broken, "f")


def test_the_last_block_that_defines_the_function_counts():
    assert extract_code("```\nf = 1\n```\n```\nprint(f(2))\n```", "f") == "f = 1"


def test_a_secret_of_this_process_is_not_seen(sandbox):
    os.environ["CODRIVER_SECRET"] = "5"
    try:
        steals = "import os\ndef add(a, b): return int(os.environ.get('CODRIVER_SECRET', a + b + 1))"
        assert label(steals, sandbox) == "incorrect"
    finally:
        del os.environ["CODRIVER_SECRET"]
