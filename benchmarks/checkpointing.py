"""What checkpointing saves and costs at the tft225 shape: memory and time of a training step, mode by mode, and bits.

    python benchmarks/checkpointing.py [--json] [--repeats N] [--hidden H] [--selection FORM]

5 static, 210 observed and 10 known columns, history 50, horizon 10, batch 32, AdamW, dropout 0.1, one thread. Each
row's memory is measured as `qat-tft profile` does, in worker processes that start as `qat-tft train` does. For its time
all rows make their steps interleaved in one such process, so that a slower spell of the machine falls on all. The plain
model beside them (benchmarks/plain_tft.py) has the selection networks as the paper writes them down.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in every process started from here

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_tft import PlainTFT
from torch import Tensor

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import Mode, run_directly, segments_of
from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.model.forms import SELECTION_FORMS
from qat_tft.profiling.footprint import Footprint
from qat_tft.profiling.heap import merge_freed_blocks, restart_without_block_cache
from qat_tft.profiling.interleaved import Command, Measured, measure_interleaved
from qat_tft.profiling.measurement import OptimizerStep, answer, measure
from qat_tft.profiling.step_profile import STEPS, Row, commands, rows_of, simulate
from qat_tft.profiling.step_simulator import StepSimulator
from qat_tft.profiling.synthetic_step import SyntheticStep
from qat_tft.profiling.worker import Task, synthetic_step_of
from qat_tft.schema import GroupSize

KINDS = ("fp32", "qat")
GROUPS = GroupSize(5), GroupSize(220), GroupSize(10)  # 210 observed and 10 known columns are history
BATCH = 32
COMPARED_STEPS = 10
MIB = 2**20

ASKED = {
    "peak_ratio": "process memory over the start, full / off",
    "simulated_peak_ratio": "the same, simulated",
    "activation_ratio": "activations, full / off, simulated",
    "time_ratio": "time of a step, full / off",
    "plain_time_ratio": "time of a step, full / plain model without checkpointing, FP32",
    "qat_time_ratio": "time of a step, QAT / FP32, the larger of off and full",
    "qat_activation_ratio": "activations, QAT / FP32, off, simulated",
    "simulation_error": "largest difference of a simulated and a counted peak",
    "differing_bits": f"bits that differ between any two modes after {COMPARED_STEPS} steps",
}
BOUNDS = {
    "peak_ratio": {"fp32": 0.25, "qat": 0.28},
    "simulated_peak_ratio": {"fp32": 0.25, "qat": 0.28},
    "activation_ratio": {"fp32": 0.06, "qat": 0.06},
    "time_ratio": {"fp32": 1.25, "qat": 1.25},
    "plain_time_ratio": 0.80,
    "qat_time_ratio": 1.5,
    "qat_activation_ratio": 1.12,
    "simulation_error": 0.05,
    "differing_bits": 0,
}
"""What was asked for before anything was measured: none of the figures may be larger."""


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    if arguments.plain:
        measure_plain(Task.from_text(arguments.plain))
        return
    rows = rows_of(KINDS)
    shape = ModelConfig(history=50, horizon=10, hidden=arguments.hidden, selection=arguments.selection)
    simulator = StepSimulator(shape, GROUPS, QuantizationConfig(products="integer"))
    if arguments.steps:
        restart_without_block_cache()
        merge_freed_blocks()
        print(json.dumps(step_seconds(simulator, rows, arguments.steps)))
        return
    simulated = simulate(simulator, rows, BATCH, _note)
    every: dict[Row | str, Command] = {**commands(simulator, rows, BATCH, "cpu"), "plain": plain_command(simulator)}
    measured = measure_interleaved(every, arguments.repeats, _note)
    failures = [f"{key}: out of memory ({found.failure})" for key, found in measured.items() if found.failure]
    if failures:
        sys.exit("\n".join(failures))  # no ratio without all of them
    seconds = _seconds_in_one_process(arguments)
    bits = differing_bits(simulator, rows)
    result = figures(simulated, measured, seconds) | {"differing_bits": bits}
    rows_found = _rows(simulated, measured, seconds)
    if arguments.json:
        print(json.dumps({**result, "machine": machine(), "rows": rows_found}, indent=2))
    else:
        print("\n".join([machine(), "", *_step_table(rows_found), "", *_bound_table(result)]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown")
    parser.add_argument("--repeats", type=int, default=2, help="worker processes for each row (default: 2)")
    parser.add_argument("--hidden", type=int, default=128, help="hidden size (default: 128)")
    parser.add_argument(
        "--selection", choices=SELECTION_FORMS, default="exact", help="form of the selection networks (default: exact)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each row (default: 7)")
    parser.add_argument(
        "--steps", type=int, help=argparse.SUPPRESS
    )  # time that many steps of every row in this process
    parser.add_argument("--plain", help=argparse.SUPPRESS)  # a task: measure the plain model in this process
    return parser.parse_args()


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def plain_command(synthetic: SyntheticStep) -> Command:
    """Return the command that measures the plain model at a synthetic step's shape in a worker process."""
    task = Task.of(synthetic, "fp32", frozenset(), windows=BATCH, device="cpu", steps=STEPS)
    return [sys.executable, __file__, "--plain", task.text]


def measure_plain(task: Task) -> None:
    """Measure the plain model in this process, as its command asks."""
    make_step = partial(plain_step, synthetic_step_of(task), task.windows)
    answer(lambda: measure(make_step, torch.device(task.device), steps=task.steps))


def plain_step(synthetic: SyntheticStep, windows: int) -> OptimizerStep:
    """Return what makes steps of the plain model at a synthetic step's shape."""
    shape = synthetic.shape
    model = PlainTFT(
        *(group.real for group in synthetic.groups),
        horizon=shape.horizon,
        hidden=shape.hidden,
        heads=shape.heads,
        dropout=shape.dropout,
        quantiles=len(shape.quantiles),
    )
    return OptimizerStep(model.train(), partial(synthetic.loss, model, run_directly, windows))


def row_step(synthetic: SyntheticStep, row: Row) -> OptimizerStep:
    """Return what makes a row's steps."""
    model = synthetic.build(row.kind)
    return OptimizerStep(model, partial(synthetic.loss, model, runner_for(row.segments), BATCH))


def step_seconds(synthetic: SyntheticStep, rows: list[Row], rounds: int) -> dict[str, float]:
    """Return the median seconds of a step of each row and of the plain model, all of them interleaved.

    A first round, in which the optimizers allocate their memory, is not timed.
    """
    steps = {**{str(row): row_step(synthetic, row) for row in rows}, "plain": plain_step(synthetic, BATCH)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def _seconds_in_one_process(arguments: argparse.Namespace) -> dict[str, float]:
    _note(f"Timing {arguments.rounds} steps of each row, interleaved")
    options = ["--hidden", str(arguments.hidden), "--selection", arguments.selection, "--steps", str(arguments.rounds)]
    done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def differing_bits(synthetic: SyntheticStep, rows: list[Row]) -> int:
    """Return how many bits of losses, weights and buffers differ after the same steps, over all pairs of modes."""
    count = 0
    for kind in KINDS:
        ends = []
        for row in (row for row in rows if row.kind == kind):
            _note(f"Comparing {COMPARED_STEPS} steps of {row}")
            ends.append(trained(synthetic, row))
        for one, other in combinations(ends, 2):
            count += sum(differing(a, b) for a, b in zip(one, other, strict=True))
    return count


def trained(synthetic: SyntheticStep, row: Row) -> list[Tensor]:
    """Return losses, weights and buffers of the same steps from the same start."""
    torch.manual_seed(0)
    step = row_step(synthetic, row)
    losses = [step() for _ in range(COMPARED_STEPS)]
    return [*losses, *(tensor.detach() for tensor in [*step.model.parameters(), *step.model.buffers()])]


def differing(one: Tensor, other: Tensor) -> int:
    """Return how many bits of two tensors of the same shape and type differ."""
    first, second = (tensor.contiguous().view(-1).numpy().view(np.uint8) for tensor in (one, other))
    return int(np.bitwise_count(first ^ second).sum())


def figures(
    simulated: Mapping[Row, Footprint], measured: Mapping[Row | str, Measured], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return the ratios of one run."""
    off, full = ({kind: Row(kind, segments_of(mode)) for kind in KINDS} for mode in (Mode.OFF, Mode.FULL))

    def full_to_off(value: Mapping[Row, float]) -> dict[str, float]:
        return {kind: value[full[kind]] / value[off[kind]] for kind in KINDS}

    return {
        "peak_ratio": full_to_off({row: measured[row].process_bytes for row in simulated}),
        "simulated_peak_ratio": full_to_off({row: found.peak for row, found in simulated.items()}),
        "activation_ratio": full_to_off({row: found.activations for row, found in simulated.items()}),
        "time_ratio": full_to_off({row: seconds[str(row)] for row in simulated}),
        "plain_time_ratio": seconds[str(full["fp32"])] / seconds["plain"],
        "qat_time_ratio": max(seconds[str(mode["qat"])] / seconds[str(mode["fp32"])] for mode in (off, full)),
        "qat_activation_ratio": simulated[off["qat"]].activations / simulated[off["fp32"]].activations,
        "simulation_error": max(
            abs(found.peak - measured[row].live_bytes) / measured[row].live_bytes for row, found in simulated.items()
        ),
    }


def machine() -> str:
    """Say what this runs on: processor, threads, and the versions that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = f"{names[0]}, {len(names)} cores" if names else platform.processor()
    libc = " ".join(platform.libc_ver())
    return f"{processor}; {torch.get_num_threads()} thread; torch {torch.__version__}; {libc}"


def _rows(
    simulated: Mapping[Row, Footprint], measured: Mapping[Row | str, Measured], seconds: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    rows = {}
    for key, found in measured.items():
        sizes = {"process_bytes": found.process_bytes, "live_bytes": found.live_bytes}
        more = {} if isinstance(key, str) else {"simulated_bytes": simulated[key].peak}
        rows[str(key)] = {**sizes, **more, "step_seconds": seconds[str(key)]}
    return rows


def _step_table(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = ["| | process | live tensors | simulated | time of a step |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, row in rows.items():
        sizes = [
            f"{row[key] / MIB:,.0f} MiB" for key in ("process_bytes", "live_bytes", "simulated_bytes") if key in row
        ]
        lines.append(f"| {' | '.join([name, *sizes, *[''] * (3 - len(sizes))])} | {row['step_seconds']:.2f} s |")
    return lines


def _bound_table(result: dict[str, Any]) -> list[str]:
    lines = ["| figure | key | asked for | reached |", "| --- | --- | ---: | ---: |"]
    for key, words in ASKED.items():
        reached, bound = result[key], BOUNDS[key]
        for kind in KINDS if isinstance(reached, dict) else ("",):
            value, limit = (reached[kind], bound[kind]) if kind else (reached, bound)
            name = f"{words}, {kind}" if kind else words
            lines.append(f"| {name} | `{key}` | {limit:.4g} | {value:.3g} |")
    return lines


if __name__ == "__main__":
    main()
