"""How many variables a selection network should compute at once: memory and time of a training step by chunk size.

    python benchmarks/selection_chunk.py [--json] [--repeats N]

At the tft225 shape with hidden size 128, under full checkpointing and without. Times are medians of steps of all chunk
sizes interleaved on one thread; memory is the peak of live tensors of one step, gradients included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.model.loss import quantile_loss
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.profiling.live_tensors import peak_bytes
from qat_tft.schema import GroupSize

CHUNKS = (2, 4, 8, 16, 32)
MODES = ("off", "full")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps per chunk size and mode (default: 3)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps = {(mode, chunk): training_step(mode, chunk) for chunk in CHUNKS for mode in MODES}
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in steps}
    for _ in range(arguments.repeats):
        for key, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[key].append(time.perf_counter() - start)
    rows = [
        {
            "mode": mode,
            "chunk": chunk,
            "live_peak_mib": peak_bytes(step, torch.device("cpu")) / 2**20,
            "step_seconds": statistics.median(seconds[mode, chunk]),
        }
        for (mode, chunk), step in steps.items()
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'mode':6}{'chunk':>6}{'live MiB':>10}{'step s':>8}")
    for row in rows:
        print(f"{row['mode']:6}{row['chunk']:6}{row['live_peak_mib']:10.0f}{row['step_seconds']:8.2f}")


def training_step(mode: str, chunk: int) -> Callable[[], None]:
    """Return a function that makes one forward and backward pass of a fresh model."""
    torch.manual_seed(0)
    groups = GroupSize(5), GroupSize(220), GroupSize(10)  # 210 observed and 10 known columns are history
    shape = {"history": 50, "horizon": 10, "hidden": 128, "selection_chunk": chunk}
    model = TemporalFusionTransformer(*groups, **shape, selection="exact")
    inputs = torch.randn(32, 5), torch.randn(32, 50, 220), torch.randn(32, 10, 10)
    target, runner = torch.randn(32, 10), runner_for(mode)

    def step() -> None:
        model.zero_grad()
        quantile_loss(model(*inputs, runner).quantiles, target, model.quantiles).backward()

    return step


if __name__ == "__main__":
    main()
