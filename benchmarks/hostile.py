"""Does everything to the program that a bad day does, and counts what is lost, wrong or badly told.

    python benchmarks/hostile.py [broken kills write_errors representations] [--json] [--seed 0] [--share 1.0]

Four kinds of trial, each in processes of its own on a tiny run in a temporary folder: broken and hostile input,
SIGKILL at random moments, errors of the file system at every write, and one table written in many ways.
docs/reliability.md quotes the output. All of it takes less than half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from faults import broken_inputs, kills, representations, write_errors
from faults.tally import Tally

Measure = Callable[[Path, int, float], Tally]
KINDS: dict[str, Measure] = {
    "broken": broken_inputs.measure,
    "kills": kills.measure,
    "write_errors": write_errors.measure,
    "representations": representations.measure,
}


def main() -> int:
    """Run the named kinds, print the figures, and exit with 1 where a trial failed."""
    options = _options()
    figures: dict[str, dict[str, float]] = {}
    failed = False
    for kind in options.kinds or KINDS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"hostile-{kind}-") as work:
            tally = KINDS[kind](Path(work), options.seed, options.share)
        figures[kind] = {**tally.to_json(), "seconds": round(time.monotonic() - began)}
        failed = failed or bool(tally.failures)
        for failure in tally.failures:
            print(f"{kind}: {failure}", file=sys.stderr)
    print(json.dumps(figures, indent=2) if options.json else _table(figures))
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help="Kinds of trial. Default: all of them.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of everything that is drawn.")
    parser.add_argument("--share", type=float, default=1.0, help="Share of the trials to run.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    return parser.parse_args()


def _table(figures: dict[str, dict[str, float]]) -> str:
    rows = [[kind, *(f"{name} {value:g}" for name, value in found.items())] for kind, found in figures.items()]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
