"""Run the paper's study on real CIFAR-10 test images, corrupted here, and the embedded model.

Every part is one `ctta reproduce` command into one store; the rows behind its tables go to `benchmarks/evidence/`.
Parts that are done are not run again and killed ones continue, so this may be stopped and started at will.
`ctta data get cifar10` and `ctta data make cifar10-c` must have been run before.

    python benchmarks/evidence.py --list
    python benchmarks/evidence.py --store ~/evidence.sqlite --processes 2 --threads 1
    python benchmarks/evidence.py --store ~/evidence.sqlite differences
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

ROWS = Path(__file__).with_name("evidence")
WHOLE = "--dataset cifar10-c --model embedded:"
STUDY = {
    "cost": f"cost {WHOLE} --images 400",
    "differences": f"differences {WHOLE} --images 2000",
    "ablations": f"optimizers pseudo-labels lambda temperature alpha importance adapted {WHOLE} --images 2000",
    "continual": f"table1 {WHOLE} --only 'BN-1,Tent (cont.),LAW,PALM' --seeds 0-2",
    "continual-others": f"table1 {WHOLE} --only 'Source,EcoTTA,AdaContrast,SFT (cont.)'",
    "continual-teachers": f"table1 {WHOLE} --only CoTTA,DSS --images 2000",
    "mixed": f"mixed correlated {WHOLE} --images 1000",
    "forgetting": f"forgetting {WHOLE} --images 2000",
    "recurring": f"recurring {WHOLE} --images 1000",
    "gradual": f"gtta gradual {WHOLE} --images 1000",
}
"""The words after `ctta reproduce`, by the name of the part: short ones first."""


def main() -> None:
    """Run all parts, or some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", help="some of the parts (default: all)")
    parser.add_argument("--list", action="store_true", help="print the commands")
    parser.add_argument("--store", type=Path, default=Path("runs/evidence.sqlite"))
    parser.add_argument("--processes", default="2")
    parser.add_argument("--threads", default="1")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts) - set(STUDY))
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; parts: {', '.join(STUDY)}")
    for name in arguments.parts or STUDY:
        if arguments.list:
            print(f"{name:20}ctta reproduce {STUDY[name]}")
            continue
        words = ["--processes", arguments.processes, "--threads", arguments.threads]
        words += ["--store", str(arguments.store), "--rows", str(ROWS)]
        command = [sys.executable, "-m", "ctta", "reproduce", *shlex.split(STUDY[name]), *words]
        print("$", shlex.join(command), flush=True)
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
