"""Run the paper's study on real CIFAR-10 test images, corrupted here, and the embedded model.

Every part is one `ctta reproduce` command into one store; the rows behind its tables go to
`benchmarks/evidence/PART.jsonl`, and `index.json` beside them says what each part is. Parts that are done are not
run again and killed ones continue where the store is still there, so this may be stopped and started at will.
`make docs` writes docs/results.md from the rows.
`ctta data get cifar10` and `ctta data make cifar10-c` must have been run before.

    python benchmarks/evidence.py --list                              # what is left to run
    python benchmarks/evidence.py --store ~/evidence.sqlite --processes 2 --threads 1
    python benchmarks/evidence.py --store ~/evidence.sqlite temperature alpha
    python benchmarks/evidence.py --verify continual-source           # run again, compare with the rows kept here
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ctta._core.files import write
from ctta.bench import archive
from ctta.bench.reproduction import Reproduction
from ctta.corruptions import EXTRA

ROWS = Path(__file__).with_name("evidence")
EMBEDDED = "--dataset embedded"
FULL = "--dataset cifar10-c --model embedded:"
WHOLE = f"{FULL} --precision bf16"
"""In full precision the study takes twice as long; `precision` and `speed` are there to show what that changes."""
LONG = f"{WHOLE} --preset embedded-long"
"""Streams of some hundred batches and more want lower rates (docs/embedded.md)."""
TEACHERS = "CoTTA,DSS"
OTHERS = "Source,BN-1,Tent (cont.),EcoTTA,AdaContrast,SFT (cont.),LAW,PALM"
PUBLISHED = "Source,BN-1,Tent (cont.),AdaContrast,SFT (cont.),LAW,PALM"
"""Of the paper's table of gradual streams. CoTTA and DSS take hours on 675 batches, so each has a part."""
ADVISED = "PALM careful,PALM bold"
"""What docs/choosing.md advises for models without a preset."""
QUICK = "Source,BN-1,Tent (cont.),PALM"
SIZES = (10, 50, 200)
ELSEWHERE = f"--corruptions {','.join(sorted(EXTRA))}"
"""Advice on settings comes from corruptions that are not reported."""
CHECKED = "BN-1,Tent (cont.),LAW,PALM"
REST = "Source,EcoTTA,AdaContrast,SFT (cont.)"
CLOSEST = "AdaContrast,SFT (cont.),LAW,PALM"
"""The best four on 150 batches, where a seed might decide."""
FIRST = "paper,paper with eta / C,target 1/C,rate per element,unselected are frozen,Adam lasts,margin 0.4 ln C"
SECOND = (
    "lambda without C,entropy over the batch,first average = first sensitivity,"
    "weight decay 5e-4 (CIFAR-100-C code),sum over the batch,classifier too"
)
THIRD = (
    "KL(p||u),no gradient through the clean side,no gradient through the view,"
    "consistency of kept samples,source statistics,logits after the step"
)
"""The differences between the paper and its code, those that the paper states and the code has otherwise first."""
FASTER = "exact,bfloat16 alone,refresh 4,fast with refresh 4"
REFRESHED = "refresh 3,refresh 8,fast,fast with refresh 8"
SWEEPS = ("lambda", "temperature", "alpha", "optimizers", "pseudo-labels")
STUDY = {
    "speed": f"speed {EMBEDDED} --only 'exact,bfloat16 alone' --seeds 0-2",
    "continual-bn1": f"table1 {WHOLE} --only BN-1 --seeds 0-2",
    "continual-source": f"table1 {WHOLE} --only Source",
    "continual-bn1-full": f"table1 {FULL} --only BN-1 --seeds 0-2",
    "continual-source-full": f"table1 {FULL} --only Source",
    "continual-palm-law": f"table1 {LONG} --only PALM,LAW",
    "continual-tent": f"table1 {LONG} --only 'Tent (cont.)' --seeds 0-2",
    "continual-sft": f"table1 {LONG} --only 'SFT (cont.)'",
    "continual-adacontrast": f"table1 {LONG} --only AdaContrast",
    "continual-ecotta": f"table1 {LONG} --only EcoTTA",
    "continual-cotta": f"table1 {LONG} --only CoTTA",
    "continual-dss": f"table1 {LONG} --only DSS",
    "speed-choice": f"speed {FULL} {ELSEWHERE} --images 2000 --only '{FASTER}' --seeds 0-2",
    "speed-refresh": f"speed {FULL} {ELSEWHERE} --images 2000 --only '{REFRESHED}' --seeds 0-2",
    "share": f"share {WHOLE} {ELSEWHERE} --images 2000",
    "share-bn1": f"share {WHOLE} {ELSEWHERE} --images 2000 --only BN-1",
    "share-anchor": f"share {WHOLE} {ELSEWHERE} --images 2000 --only '5 % anchor 0.02,25 % anchor 0.02'",
    **{
        f"batches-of-{n}": f"table1 {WHOLE} {ELSEWHERE} --images 1000 --batch-size {n} --only '{QUICK}'"
        for n in SIZES
    },
    "continual-seeds": f"table1 {LONG} --only PALM,LAW --seeds 1-2",
    **{
        f"differences-{k}": f"differences {WHOLE} --images 2000 --only 'official,{rows}'"
        for k, rows in enumerate((FIRST, SECOND, THIRD), 1)
    },
    "anchor": f"anchor {WHOLE} --only 'rate 2e-3 anchor 0.02'",
    "anchor-careful": f"anchor {WHOLE} --only careful",
    "resets": f"resets {WHOLE} --images 2000",
    "continual-teachers": f"table1 {WHOLE} --only {TEACHERS} --images 2000",
    "continual-rest": f"table1 {WHOLE} --only '{REST}' --images 2000",
    "continual-rest-seeds": f"table1 {WHOLE} --only '{CLOSEST}' --images 2000 --seeds 1-2",
    "precision-full": f"table1 {FULL} --only '{CHECKED}' --images 2000",
    "precision-bf16": f"table1 {WHOLE} --only '{CHECKED}' --images 2000",
    "cost": f"cost {FULL} --images 1000 --corruptions glass_blur,snow",
    **{name: f"{name} {WHOLE} --images 2000 --only PALM" for name in ("importance", "adapted")},
    **{name: f"{name} {WHOLE} --images 2000" for name in SWEEPS},
    "forgetting": f"forgetting {WHOLE} --images 2000",
    **{
        f"{name}{suffix}": f"{name} {WHOLE} --images 1000 --only '{rows}'"
        for name in ("mixed", "correlated", "recurring")
        for suffix, rows in (("", OTHERS), ("-teachers", TEACHERS), ("-advised", ADVISED))
    },
    "gradual": f"gtta {LONG} --images 1000 --only '{PUBLISHED}'",
    "gradual-ecotta": f"gradual {LONG} --images 1000 --only EcoTTA",
    "gradual-careful": f"gradual {LONG} --images 1000 --only 'PALM careful'",
    "gradual-bold": f"gradual {LONG} --images 1000 --only 'PALM bold'",
    "gradual-cotta": f"gtta {LONG} --images 1000 --only CoTTA",
    "gradual-dss": f"gradual {LONG} --images 1000 --only DSS",
}
"""The words after `ctta reproduce`, by the name of the part. Each keeps its rows in a file of its own."""
INDEX = ROWS / "index.json"
"""Command and title of every part that is done."""


def main() -> None:
    """Run all parts, or some; or run some again and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", help="some of the parts (default: all that are not done)")
    parser.add_argument("--list", action="store_true", help="print the commands")
    parser.add_argument(
        "--verify", action="store_true", help="run parts that are done again, keep nothing, compare"
    )
    parser.add_argument("--store", type=Path, default=Path("runs/evidence.sqlite"))
    parser.add_argument("--processes", default="2")
    parser.add_argument("--threads", default="1")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts) - set(STUDY))
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; parts: {', '.join(STUDY)}")
    if arguments.verify and not (arguments.parts and set(arguments.parts) <= set(done())):
        parser.error(f"--verify needs the names of parts that are done: {', '.join(done())}")
    wanted = arguments.parts or [name for name in STUDY if name not in done()]
    engine = ["--processes", arguments.processes, "--threads", arguments.threads]
    if arguments.list:
        print(*(f"{name:22}ctta reproduce {STUDY[name]}" for name in wanted), sep="\n")
    elif arguments.verify:
        differing = [line for name in wanted for line in verify(name, engine)]
        sys.exit("\n".join(differing) if differing else None)
    else:
        for name in wanted:
            keep(name, run(name, engine, arguments.store))


def run(name: str, engine: list[str], store: Path) -> bytes:
    """Run a part into a store; returns the file of its rows."""
    with tempfile.TemporaryDirectory() as rows:
        words = [*shlex.split(STUDY[name]), *engine, "--store", str(store), "--rows", rows]
        command = [sys.executable, "-m", "ctta", "reproduce", *words]
        print("$", shlex.join(command), flush=True)
        subprocess.run(command, check=True)
        (file,) = Path(rows).iterdir()
        return file.read_bytes()


def keep(name: str, rows: bytes) -> None:
    """Keep the rows of a part, and enter it into the index."""
    kept = archive.read(write(ROWS / f"{name}.jsonl", rows))
    # read again: another process may have added to it meanwhile
    parts = {**index(), name: {"title": kept.title, "command": kept.command}}
    ordered = {part: parts[part] for part in STUDY if part in parts}
    write(INDEX, (json.dumps(ordered, indent=1) + "\n").encode())


def verify(name: str, engine: list[str]) -> Iterator[str]:
    """Run a part again, in a store of its own; returns the rows that came out otherwise than those kept here."""
    with tempfile.TemporaryDirectory() as folder:
        again = write(Path(folder) / "again.jsonl", run(name, engine, Path(folder) / "again.sqlite"))
        yield from compare(archive.read(ROWS / f"{name}.jsonl"), archive.read(again))


def compare(kept: Reproduction, again: Reproduction) -> Iterator[str]:
    """Compare what was right and wrong, stay by stay; prints the rows that agree and returns those that do not."""
    found = {(result.label, run.seed): run for result in again.results for run in result.runs}
    for result in kept.results:  # by label and seed: an experiment may have got further rows since
        for old in result.runs:
            row, new = f"{result.label}, seed {old.seed}", found[result.label, old.seed]
            if old.visits == new.visits:
                print(f"{row}: identical, {sum(visit.wrong for visit in old.visits):,} images wrong")
            else:
                yield f"{row}: {old.mean:.2f} % is kept, {new.mean:.2f} % came out"


def index() -> dict[str, dict[str, str]]:
    """Command and title of every part that is done."""
    found: dict[str, dict[str, str]] = json.loads(INDEX.read_text()) if INDEX.exists() else {}
    return found


def done() -> list[str]:
    """Names of the parts whose rows are complete."""
    return list(index())


if __name__ == "__main__":
    main()
