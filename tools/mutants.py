"""Small changes to `src/codriver/signals`, one at a time: does a test of the changed module fail?

    python tools/mutants.py [--sample N] [--seed S] [--workers W] [--module NAME ...] [--list]

Changes: comparisons at and beyond their border, arithmetic, signs, constants, and/or, a dropped term, a dropped
`.detach()`, clamp, mask or entry check. Messages, docstrings and annotations are left alone. Each mutant lives in a
temporary copy, in a fork that has torch loaded already; the tests are those of tests/signals that import the module,
and its doctests. Results: benchmarks/results/mutants.json. A survivor is explained when docs/mutants.md has a row with
its file, line of code and change.
Why not mutmut: docs/mutants.md.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIGNALS, TESTS = Path("src/codriver/signals"), Path("tests/signals")
LIMIT_S = 90
COMPARE = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "**": "*", "//": "/", "&": "|", "|": "&"}
NAMES = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "amin": "amax", "amax": "amin"}
DROPPED = ("detach", "clamp", "masked_fill", "abs", "sign")  # x.f(...) becomes x
UNWRAPPED = ("floored", "precise", "bounded_exp")  # f(x) becomes x
SYMBOL = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Add: "+",
          ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//", ast.BitAnd: "&",
          ast.BitOr: "|"}  # fmt: skip


def variants(node: ast.AST) -> Iterator[str]:
    """What may stand in the node's place, as source text."""
    match node:
        case ast.Compare(left=a, ops=ops, comparators=bs):
            sides = [text(x) for x in (a, *bs)]
            for i, op in enumerate(ops):
                for other in COMPARE.get(SYMBOL.get(type(op), ""), ()):
                    signs = [other if j == i else SYMBOL.get(type(o), "in") for j, o in enumerate(ops)]
                    yield sides[0] + "".join(f" {s} {b}" for s, b in zip(signs, sides[1:], strict=True))
        case ast.BinOp(left=a, op=op, right=b) if type(op) in SYMBOL:
            yield f"({text(a)} {ARITHMETIC[SYMBOL[type(op)]]} {text(b)})"
            yield text(a)
            if not isinstance(op, ast.Div | ast.Pow):
                yield text(b)
        case ast.UnaryOp(operand=x) if not isinstance(x, ast.Constant):
            yield text(x)
        case ast.BoolOp(op=op, values=xs):
            yield "(" + (" or " if isinstance(op, ast.And) else " and ").join(f"({text(x)})" for x in xs) + ")"
        case ast.IfExp(body=a, orelse=b):
            yield from (text(a), text(b))
        case ast.Constant(value=bool() as x):
            yield str(not x)
        case ast.Constant(value=int() | float() as x):
            yield repr(x + 1)
            if x:
                yield repr(x / 2 if isinstance(x, float) else x - 1)
        case ast.Call(func=ast.Attribute(value=x, attr=name)) if name in DROPPED:
            yield text(x)
        case ast.Call(func=ast.Name(id=name), args=[x]) if name in UNWRAPPED:
            yield text(x)
        case ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Attribute(value=x, attr=name) if name in NAMES and text(x) != "self":
            yield f"{text(x)}.{NAMES[name]}"
        case ast.Name(id=name) if name in NAMES:
            yield NAMES[name]


def text(node: ast.AST) -> str:
    inner = ast.unparse(node)
    return f"({inner})" if isinstance(node, ast.BinOp | ast.IfExp | ast.Compare | ast.BoolOp | ast.UnaryOp) else inner


def nodes(parent: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Raise | ast.JoinedStr):
                yield child
                yield from nodes(child)


def mutants(path: Path) -> list[dict]:
    """All mutants of a file: file, line, change, and the whole changed source."""
    source = (ROOT / path).read_text()
    assert source.isascii(), path  # columns of ast count bytes
    lines, starts = source.splitlines(keepends=True), [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found = []
    for node in nodes(ast.parse(source)):
        for new in variants(node):
            a, b = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            changed = source[:a] + new + source[b:]
            change = f"`{' '.join(source[a:b].split())}` to `{new}`"
            found.append(
                {
                    "file": path.name,
                    "line": node.lineno,
                    "code": lines[node.lineno - 1].strip(),
                    "change": change,
                    "source": changed,
                }
            )
    return list({m["source"]: m for m in found if m["source"] != source}.values())


def tests_of(module: str) -> list[str]:
    """Its own test files first; then all that import it. Everything imports `_inputs`."""
    files = sorted((ROOT / TESTS).glob("test_*.py"), key=lambda f: (not f.name.startswith(f"test_{module}"), f.name))
    return [f"{TESTS / f.name}" for f in files if module == "_inputs" or f"signals.{module} " in f.read_text()]


def run_tests(tree: Path, arguments: list[str]) -> int:
    """A fork that runs pytest in a copy of the tree; returns its process id."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.chdir(tree)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        sys.path[:0] = [str(tree / "src"), str(tree)]
        os.environ["PYTHONPATH"] = str(tree / "src")  # for the test that starts a python of its own
        loaded = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis was imported before pytest could rewrite it
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", loaded, *arguments]))
    finally:
        os._exit(code)


def finish(running: dict[int, tuple], trees: list[Path]) -> None:
    """Wait for one fork to end, or end the one that is over its limit."""
    while True:
        for pid, (tree, mutant, begin) in list(running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done and time.time() - begin > LIMIT_S:
                os.kill(pid, signal.SIGKILL)
                done, status = os.waitpid(pid, 0)
            if done:
                mutant["survived"] = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
                (tree / SIGNALS / mutant["file"]).write_text((ROOT / SIGNALS / mutant["file"]).read_text())
                trees.append(tree)
                del running[pid]
                return
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="this many, drawn by --seed; all when left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--module", nargs="*", help="only these, such as `sampled`")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "mutants.json")
    args = parser.parse_args()
    files = [f for f in sorted((ROOT / SIGNALS).glob("*.py")) if not args.module or f.stem in args.module]
    every = [m for f in files for m in mutants(SIGNALS / f.name)]
    chosen = random.Random(args.seed).sample(every, min(args.sample or len(every), len(every)))
    if args.list:
        print("\n".join(f"{m['file']}:{m['line']}  {m['change']}" for m in chosen), f"\n{len(chosen)} of {len(every)}")
        return 0
    begin, running = time.time(), {}
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder) / str(i) for i in range(args.workers)]
        for tree in trees:
            for part in (SIGNALS, TESTS):
                shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            for part in ("pyproject.toml", "src/codriver/__init__.py", "tests/__init__.py"):
                shutil.copy(ROOT / part, tree / part)
        if os.waitstatus_to_exitcode(os.waitpid(run_tests(trees[0], [str(TESTS), str(SIGNALS)]), 0)[1]):
            sys.exit("mutants: the tests fail without any change; nothing can be learned")
        for mutant in chosen:
            tree = trees.pop()
            (tree / SIGNALS / mutant["file"]).write_text(mutant.pop("source"))
            tests = [*tests_of(mutant["file"].removesuffix(".py")), str(SIGNALS / mutant["file"])]
            running[run_tests(tree, tests)] = (tree, mutant, time.time())
            if not trees:
                finish(running, trees)
        while running:
            finish(running, trees)
    page = (ROOT / "docs" / "mutants.md").read_text().replace("\\|", "|")  # a table cell cannot hold a bare pipe
    survivors = [{k: m[k] for k in ("file", "line", "code", "change")} for m in chosen if m["survived"]]
    for m in survivors:
        m["explained"] = any(all(m[k] in row for k in ("file", "code", "change")) for row in page.splitlines())
    unexplained = sum(not m["explained"] for m in survivors)
    result = {"mutants": len(every), "run": len(chosen), "seed": args.seed, "survived": len(survivors),
              "unexplained": unexplained, "seconds": round(time.time() - begin), "survivors": survivors}  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(unexplained > 0.05 * len(chosen))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    import hypothesis
    import numpy  # noqa: F401
    import pytest
    import torch

    torch.set_num_threads(1)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutants")
    sys.exit(main())
