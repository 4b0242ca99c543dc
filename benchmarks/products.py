"""Time of a forecast with the INT8 file of a run against its FP32 file, by hidden size and form of products.

    qat-tft train --parquet-file ett_h1.parquet --schema examples/ett_h1.toml --history 168 --horizon 24 \
        --calendar hour,day_of_week,day_of_month,month --hidden 32 --products integer --use-qat --use-int8 \
        --epochs 1 --qat-epochs 1 --batches-per-epoch 3 --name h32-integer      # time does not depend on the weights
    python benchmarks/products.py runs/h32-integer runs/h32-float

One thread; the two files are timed in turn. What counts is the time of the process on its processor, from which other
work on the machine takes least in the fastest tenth of the calls. Decision 039 quotes the output.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.layout import FileKind

BATCHES = (1, 32)
KINDS: tuple[FileKind, ...] = ("fp32", "int8")
FASTEST = 0.1
SECONDS = 10.0


def milliseconds(run: RunFolder, batch: int, seconds: float) -> dict[str, float]:
    """Processor time of a forecast with each file of a run."""
    calls = {kind: _forecast(run, kind, batch) for kind in KINDS}
    spent: dict[str, list[int]] = {kind: [] for kind in KINDS}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for kind, call in calls.items():
            start = time.process_time_ns()
            call()
            spent[kind].append(time.process_time_ns() - start)
    return {kind: float(np.quantile(times, FASTEST)) / 1e6 for kind, times in spent.items()}


def _forecast(run: RunFolder, kind: FileKind, batch: int) -> Callable[[], object]:
    session = ForecastSession(run.onnx_file(kind), threads=1)
    inputs = window_inputs(run.load_check_windows(), torch.arange(batch), session.metadata)
    session.forecast(inputs)
    return lambda: session.forecast(inputs)


def main() -> None:
    """Print a line per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help="run folders with both files (default: all in runs/)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for each run and batch")
    arguments = parser.parse_args()
    print("| hidden | products | FP32, ms, batch 1, 32 | INT8 / FP32, batch 1, 32 | bytes INT8 / FP32 |")
    print("| ---: | --- | ---: | ---: | ---: |")
    found_here = sorted(path.parent for path in Path("runs").glob("*/model.int8.onnx"))
    for path in arguments.runs or found_here:
        run = RunFolder.open(path)
        config = run.load_config()
        found = [milliseconds(run, batch, arguments.seconds) for batch in BATCHES]
        times = ", ".join(f"{one['fp32']:.2f}" for one in found)
        ratios = ", ".join(f"{one['int8'] / one['fp32']:.2f}" for one in found)
        sizes = [run.onnx_file(kind).stat().st_size for kind in KINDS]
        form = config.quantization.products
        print(f"| {config.model.hidden} | {form} | {times} | {ratios} | {sizes[1] / sizes[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
