"""Small faults put into the source, one at a time: does a test notice? Run by hand with `make mutants`.

A mutant is one change at one place: a number nudged, a comparison swapped, a statement left out. It is made in a
copy of the tree, and the tests that speak of its module run there until the first one fails. Outcomes are kept
(`--outcomes`, a JSON line each), so that a stopped run goes on; `--only` looks at one mutant again.

    python benchmarks/mutants.py --seed 1 --count 60
    python benchmarks/mutants.py --seed 1 --only 17
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parent.parent
PACKAGES = ("functional", "methods", "corruptions", "streams", "bench")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "runs", "build", "dist", "*.egg-info")
TEST_FILES, SECONDS = 4, 300
"""Test files a mutant meets at most, beside the golden vectors, and their time: one that hangs is caught."""

PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, FloorDiv Mod, BitAnd BitOr"
BOTH_WAYS = [pair.split() for pair in PAIRS.split(", ")]
SWAPS = {getattr(ast, a): getattr(ast, b) for x, y in BOTH_WAYS for a, b in ((x, y), (y, x))} | {ast.Pow: ast.Mult}
OPPOSITES = {"min": "max", "amin": "amax", "argmin": "argmax", "any": "all", "floor": "ceil", "minimum": "maximum"}
OPPOSITES |= {other: name for name, other in OPPOSITES.items()}
COMMUTE = {"isinstance", "issubclass", "equal", "allclose", "add", "mul", "_foreach_add", "_foreach_mul"} | {
    *OPPOSITES
}
"""Calls that do the same, or fail at once, with their first two arguments swapped."""
TINY = 1e-6
"""Smaller constants keep a quotient finite: a nudge of theirs is no other program."""


@dataclass(frozen=True)
class Mutant:
    """One change: where, of which kind, and the text in the old one's stead."""

    file: str
    node: ast.stmt | ast.expr
    kind: str
    text: str

    def written_into(self, source: str) -> str:
        """Return the module with this change."""
        lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes
        first, last = self.node.lineno - 1, (self.node.end_lineno or 0) - 1
        before, after = lines[first][: self.node.col_offset], lines[last][self.node.end_col_offset :]
        return b"".join([*lines[:first], before, self.text.encode(), after, *lines[last + 1 :]]).decode()

    def __str__(self) -> str:
        before = " ".join(ast.unparse(self.node).split())
        place = f"{self.file}:{self.node.lineno}:{self.node.col_offset}"
        return f"{place}  {self.kind}: {before[:70]} -> {self.text[:70]}"


def changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Every change this node allows: its kind and the new text."""
    new = copy.deepcopy(node)
    match new:
        case ast.Constant(value=bool(value)):
            yield "flag", str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", str(value + 1)
        case ast.Constant(value=float(value)) if not 0 < value < TINY:
            yield "constant", repr(round(value * 1.1, 12) or 0.1)
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            new.ops = [SWAPS[type(op)]()]
            yield "compare", f"({ast.unparse(new)})"
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            new.op = SWAPS[type(op)]()
            yield type(new).__name__.lower(), f"({ast.unparse(new)})"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "negation", f"({ast.unparse(operand)})"
        case ast.List(elts=items, ctx=ast.Load()) | ast.Tuple(elts=items, ctx=ast.Load()):
            items.reverse()
            if ast.unparse(new) != ast.unparse(node):
                yield "order", f"({ast.unparse(new)})"
        case ast.Call(func=func, args=args):
            name = ast.unparse(func).rpartition(".")[2]
            if name in OPPOSITES:
                yield "opposite", re.sub(rf"\b{name}\(", f"{OPPOSITES[name]}(", ast.unparse(new), count=1)
            if len(args) > 1 and name not in COMMUTE:
                args[:2] = args[1::-1]
                yield "arguments", ast.unparse(new)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield "left out", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "left out", "pass"


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes a test could notice: no types, decorators, imports, help texts, and nothing within a message."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            match node:
                case _ if name in {"annotation", "returns", "decorator_list", "msg", "bases"}:
                    continue
                case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.FunctionDef(name="__repr__"):
                    continue
                case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.keyword(arg="help" | "stacklevel"):
                    continue
                case ast.Tuple() if name in {"slice", "comparators"}:  # of a type or places; to look a value up in
                    yield from places(node)
                case ast.AST():
                    yield node
                    yield from () if isinstance(node, ast.Raise) else places(node)


def drawn(seed: int, count: int) -> list[Mutant]:
    """`count` mutants: the packages take turns, and each kind of change is as likely as any other."""
    found: dict[str, dict[str, list[Mutant]]] = {package: defaultdict(list) for package in PACKAGES}
    for package, kinds in found.items():
        for path in sorted((ROOT / "src/ctta" / package).rglob("*.py")):
            for node in places(ast.parse(path.read_text())):
                for kind, text in changes(node):
                    assert isinstance(node, ast.stmt | ast.expr)
                    kinds[kind].append(Mutant(str(path.relative_to(ROOT)), node, kind, text))
    draw, chosen = random.Random(seed), []
    for number in range(count):
        kinds = found[PACKAGES[number % len(PACKAGES)]]
        some = kinds[draw.choice([kind for kind in sorted(kinds) if kinds[kind]])]
        chosen.append(some.pop(draw.randrange(len(some))))
    return chosen


def words(path: Path) -> set[str]:
    """What tests call a module: its own name and its public functions and classes."""
    named = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {name for name in [path.stem, *(node.name for node in named)] if not name.startswith("_")}


def tests_for(file: str) -> list[str]:
    """The module's examples and the test files that speak most of it, or of the modules that use its names.

    A word counts the more, the fewer test files use it. What methods compute is held by the golden vectors too.
    """
    tests = [test for test in sorted((ROOT / "tests").rglob("test_*.py")) if "zoo" not in test.parts]
    said = {test: set(re.findall(r"\w+", test.read_text())) for test in tests}
    spread = Counter(word for found in said.values() for word in found)
    names = words(ROOT / file)
    users = [path for path in (ROOT / "src").rglob("*.py") if names & set(re.findall(r"\w+", path.read_text()))]
    score = {test: float(Path(file).stem in test.stem) for test in tests}
    for path, weight in [(ROOT / file, 1.0), *((user, 0.3 / len(users)) for user in users)]:
        for word in words(path) & set(spread):
            for test in tests:
                score[test] += weight / spread[word] ** 2 * (word in said[test])
    chosen = sorted(tests, key=lambda test: -score[test])[:TEST_FILES]
    chosen = [test for test in chosen if score[test] > 0.04 * score[chosen[0]]]
    golden = [test for test in tests if "golden" in test.parts and re.search("/(methods|functional)/", file)]
    return [file, *(str(test.relative_to(ROOT)) for test in dict.fromkeys(chosen[:1] + golden + chosen))]


def run(tests: list[str], tree: Path, *, show: bool) -> str:
    """Run tests in the copy until one fails; say which."""
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "--timeout=90", *tests]
    extra = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=tree, env=os.environ | extra, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return "caught: hangs"
        finally:
            if process.poll() is None:  # with the processes it started
                os.killpg(process.pid, signal.SIGKILL)
    print(said if show else "", end="")
    by = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    return "survived" if process.returncode == 0 else f"caught: {by[0] if by else said[-200:]}"


def main() -> None:
    """Run the mutants without an outcome yet; print each, and the share that was caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--only", type=int, metavar="N", help="mutant N alone and anew, with what pytest prints")
    parser.add_argument("--outcomes", type=Path, default=Path("runs/mutants.jsonl"))
    asked = parser.parse_args()
    asked.outcomes.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.outcomes.read_text().splitlines() if asked.outcomes.exists() else []
    known = {row["change"]: row["outcome"] for row in map(json.loads, lines)}
    mutants = drawn(asked.seed, asked.count)
    numbers = [asked.only] if asked.only is not None else [n for n, m in enumerate(mutants) if str(m) not in known]
    with tempfile.TemporaryDirectory(prefix="ctta-mutants-") as folder, asked.outcomes.open("a") as log:
        tree = Path(shutil.copytree(ROOT, Path(folder) / "tree", ignore=LEFT_OUT))
        for number in numbers:
            mutant, start = mutants[number], perf_counter()
            source = (tree / mutant.file).read_text()
            (tree / mutant.file).write_text(mutant.written_into(source))
            outcome = known[str(mutant)] = run(tests_for(mutant.file), tree, show=asked.only is not None)
            (tree / mutant.file).write_text(source)
            seconds = round(perf_counter() - start, 1)
            print(
                json.dumps({"change": str(mutant), "outcome": outcome, "seconds": seconds}), file=log, flush=True
            )
            print(f"{number:3}  {seconds:6}s  {mutant}\n     {outcome}", flush=True)
    ended = [known[str(mutant)] for mutant in mutants if str(mutant) in known]
    caught = sum(outcome != "survived" for outcome in ended)
    print(f"{caught} of {len(ended)} caught, {caught / max(len(ended), 1):.0%}")


if __name__ == "__main__":
    main()
