"""Our TFT beside those of pytorch-forecasting, darts and neuralforecast: training steps, files, memory, quality.

    python benchmarks/peers.py [--json] [--peers FOLDER] [--data FOLDER] [--runs FOLDER] [--seeds N]

Two workloads (benchmarks/sides/workloads.py). Every side has a process of its own, each peer in an environment of its
own; the processes make their steps in turn, so that a slower spell of the machine falls on all. One thread; times are
medians of CPU seconds. --peers names a folder of environments, pytorch-forecasting/, darts/ and neuralforecast/;
without it ratios to peers are null. --data names a folder with ett_h1.parquet, vic_electricity.parquet,
stallion_beverages.parquet and oxford_man_volatility.parquet (docs/examples.md and docs/data.md say where they come
from); without it there is no forecast quality. What is trained or exported goes into the folder of runs and is taken
from there the next time.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in every process started from here

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch
from sides.figure_table import table_of
from sides.files import BATCHES, FP32, INT8, TimedFiles, timed_files
from sides.ours_shape import synthetic_step
from sides.process import Program, Timed, peak_of_steps, peer_programs, timed_steps
from sides.quality import SETS, Quality, measure_quality, require_sets
from sides.workloads import WORKLOADS

from qat_tft.checkpointing.segments import Mode
from qat_tft.profiling.mode_search import GPU_BUDGETS, largest_batches

MODES = ("off", "full")
LARGE_BATCH = 256
MEMORY_STEPS = 3
STEP_ROUNDS = {"w1": 5, "w2": 15}
LARGE_ROUNDS = 3
FILE_SECONDS = 20.0
MIB = 2**20
PEAKS = {"off": "fp32, off", "full": "fp32, full", "qat_full": "qat, full"}
"""What the memory of each kind and mode is called."""

KEYS = {
    "step_ratio": "time of a training step, ours / fastest peer",
    "full_over_off": "time of a step, mode full / off",
    "qat_over_fp32": "time of a step, QAT / FP32, the larger of off and full, w1",
    "batch_scaling": f"samples per second, batch {LARGE_BATCH} / batch {WORKLOADS['w1'].batch}, w1",
    "peak_mib": "memory of three steps over that before them, MiB, w1",
    "onnx_ms": "forecast of our INT8 file, ms",
    "onnx_speedup": "forecast of the fastest peer's FP32 file / of our INT8 file",
    "file_bytes": "bytes of our INT8 file, w1",
    "quality_ratio": "q-risk, measured form / exact form",
    "tabulated_sqnr_db": "lowest SQNR of selected vectors, exact form against measured form, dB",
    "largest_batch_4gb": "largest batch that fits 4 GB, mode off, simulated, w1",
    "small_speed": "forecast of our FP32 file / of our INT8 file, w2",
    "int8_ratio": "q-risk, INT8 file / FP32 file",
}


@dataclass(frozen=True)
class Found:
    """What one run of the benchmark measured.

    Attributes:
        steps: workload to side to its steps; ours are called by `row`.
        large: seconds of a step of our w1 by its batch, taken in turn.
        peaks: bytes of steps of our w1 by kind and mode.
        files: workload to its files.
        quality: set to what was found; empty without data.
        largest_batch: windows that fit 4 GB.
        peers: names of the peers; empty without environments.
    """

    steps: dict[str, dict[str, Timed]]
    large: dict[int, float]
    peaks: dict[str, int]
    files: dict[str, TimedFiles]
    quality: dict[str, Quality]
    largest_batch: int
    peers: tuple[str, ...]


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    try:
        peers = {name: peer_programs(arguments.peers, name) for name in WORKLOADS}
        if arguments.data:
            require_sets(arguments.data)
    except FileNotFoundError as missing:
        sys.exit(str(missing))
    found = measure(arguments, peers)
    result = figures(found)
    if arguments.json:
        print(json.dumps({**result, "machine": machine(), "details": details(found)}, indent=2))
    else:
        print("\n".join([machine(), "", *_side_table(found), "", *_figure_table(result), "", *_quality_table(found)]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments")
    parser.add_argument("--data", type=Path, help="folder of the sets that are not part of qat-tft")
    parser.add_argument("--runs", type=Path, default=Path("runs/peers-benchmark"), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="pairs of runs of each set (default: %(default)s)")
    return parser.parse_args()


def measure(arguments: argparse.Namespace, peers: Mapping[str, Mapping[str, Program]]) -> Found:
    """Measure everything that the arguments allow, beside the programs of the peers for each workload."""
    steps = {name: _steps(name, peers[name]) for name in WORKLOADS}
    large = _large_steps()
    peaks = {
        f"{kind}, {mode}": _peak(kind, mode) for kind, mode in (("fp32", "off"), ("fp32", "full"), ("qat", "full"))
    }
    files = {}
    for name in WORKLOADS:
        _note(f"Files of {name}")
        files[name] = timed_files(name, peers[name], arguments.runs, FILE_SECONDS)
    quality = {}
    for one in SETS if arguments.data else ():
        _note(f"Quality on {one.name}")
        quality[one.name] = measure_quality(one, arguments.data, arguments.runs, arguments.seeds)
    return Found(steps, large, peaks, files, quality, largest_batch(), tuple(peers["w1"]))


def row(kind: str, mode: str) -> str:
    """Return what our steps of a kind, "fp32" or "qat", in a mode are called."""
    return f"ours, {kind}, {mode}"


def _steps(name: str, peers: Mapping[str, Program]) -> dict[str, Timed]:
    _note(f"Steps of {name}")
    kinds = ("fp32", "qat") if name == "w1" else ("fp32",)
    ours = {row(kind, mode): Program.ours(name, kind=kind, mode=mode) for kind in kinds for mode in MODES}
    return timed_steps({**ours, **peers}, STEP_ROUNDS[name])


def _large_steps() -> dict[int, float]:
    _note(f"Steps of {LARGE_BATCH} windows")
    batches = (WORKLOADS["w1"].batch, LARGE_BATCH)
    found = timed_steps({str(batch): Program.ours("w1", batch=batch) for batch in batches}, LARGE_ROUNDS)
    return {batch: found[str(batch)].median for batch in batches}


def _peak(kind: str, mode: str) -> int:
    _note(f"Memory of {kind}, {mode}")
    return peak_of_steps(Program.ours("w1", kind=kind, mode=mode), MEMORY_STEPS)


def largest_batch() -> int:
    """Return how many windows of w1 a simulated step without checkpointing fits into 4 GB."""
    simulate, budget = synthetic_step(WORKLOADS["w1"]), GPU_BUDGETS[0].size
    fits = largest_batches(lambda batch: simulate("fp32", Mode.OFF, batch).peak, WORKLOADS["w1"].batch, [budget])
    return fits[budget]


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def figures(found: Found) -> dict[str, Any]:
    """Return the figures of `KEYS`; None where peers or data were not there."""
    wide, small = found.files["w1"], found.files["w2"]
    qat = [seconds(found, "w1", row("qat", mode)) / seconds(found, "w1", row("fp32", mode)) for mode in MODES]
    rates = {batch: batch / taken for batch, taken in found.large.items()}
    return {
        "step_ratio": {
            f"{name}_{mode}": _ratio(seconds(found, name, row("fp32", mode)), fastest_step(found, name))
            for name in WORKLOADS
            for mode in MODES
        },
        "full_over_off": {
            name: seconds(found, name, row("fp32", "full")) / seconds(found, name, row("fp32", "off"))
            for name in WORKLOADS
        },
        "qat_over_fp32": max(qat),
        "batch_scaling": rates[LARGE_BATCH] / rates[WORKLOADS["w1"].batch],
        "peak_mib": {name: found.peaks[peak] / MIB for name, peak in PEAKS.items()},
        "onnx_ms": _by_file(lambda name, batch: found.files[name].milliseconds[INT8][batch]),
        "onnx_speedup": _by_file(
            lambda name, batch: _ratio(fastest_file(found, name, batch), found.files[name].milliseconds[INT8][batch])
        ),
        "file_bytes": wide.bytes[INT8],
        "quality_ratio": {name: one.ratio for name, one in found.quality.items()} or None,
        "tabulated_sqnr_db": min((min(one.selected_db) for one in found.quality.values()), default=None),
        "largest_batch_4gb": found.largest_batch,
        "small_speed": {
            f"b{batch}": small.milliseconds[FP32][batch] / small.milliseconds[INT8][batch] for batch in BATCHES
        },
        "int8_ratio": {name: one.int8_ratio for name, one in found.quality.items()} or None,
    }


def seconds(found: Found, workload: str, side: str) -> float:
    """Return the median CPU seconds of a side's step."""
    return found.steps[workload][side].median


def fastest_step(found: Found, workload: str) -> float | None:
    """Return the CPU seconds of a step of the peer that is fastest there; None without peers."""
    return min((seconds(found, workload, peer) for peer in found.peers), default=None)


def fastest_file(found: Found, workload: str, batch: int) -> float | None:
    """Return the CPU milliseconds of the peer's file that is fastest there; None without peers."""
    return min((found.files[workload].milliseconds[peer][batch] for peer in found.peers), default=None)


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


def _by_file(value: Callable[[str, int], float | None]) -> dict[str, float | None]:
    return {f"{name}_b{batch}": value(name, batch) for name in WORKLOADS for batch in BATCHES}


def details(found: Found) -> dict[str, Any]:
    """Return what the figures come from, as plain values."""
    return {
        "steps": {name: {side: asdict(timed) for side, timed in sides.items()} for name, sides in found.steps.items()},
        "files": {name: asdict(timed) for name, timed in found.files.items()},
        "quality": {name: {**asdict(one), "ratios": one.ratios} for name, one in found.quality.items()},
    }


def machine() -> str:
    """Say what this runs on: processor, threads, and the versions that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = f"{names[0]}, {len(names)} cores" if names else platform.processor()
    versions = f"torch {torch.__version__}; onnxruntime {ort.__version__}"
    return f"{processor}; {torch.get_num_threads()} thread; {versions}; {' '.join(platform.libc_ver())}"


def _side_table(found: Found) -> Iterator[str]:
    """Yield what each side took: a training step, and a forecast by its file."""
    for name in WORKLOADS:
        yield f"| {name} | weights | step, s | {' | '.join(f'batch {batch}, ms' for batch in BATCHES)} | file, KB |"
        yield "| --- " + "| ---: " * (3 + len(BATCHES)) + "|"
        steps, files = found.steps[name], found.files[name]
        for side in [*steps, *(file for file in files.bytes if file not in steps)]:
            timed, sizes = steps.get(side), files.bytes.get(side)
            label = f"{side} {timed.version}" if timed and side in found.peers else side
            cells = [f"{timed.parameters:,}", f"{timed.median:.3f}"] if timed else ["", ""]
            cells += [f"{files.milliseconds[side][batch]:.2f}" if side in files.bytes else "" for batch in BATCHES]
            yield f"| {' | '.join([label, *cells, f'{sizes / 1000:,.0f}' if sizes else ''])} |"
        yield ""


def _figure_table(result: Mapping[str, Any]) -> Iterator[str]:
    return table_of(result, KEYS)


def _quality_table(found: Found) -> Iterator[str]:
    """Yield q-risk of both forms with the spread over the seeds."""
    if not found.quality:
        return
    yield "| set | q-risk, exact | measured | ratio | by seed | SQNR, dB |"
    yield "| --- " + "| ---: " * 5 + "|"
    for name, one in found.quality.items():
        risks = (f"{statistics.fmean(risk):.5f}" for risk in (one.exact, one.measured))
        spread = f"{min(one.ratios):.4f} to {max(one.ratios):.4f}"
        yield f"| {' | '.join([name, *risks, f'{one.ratio:.4f}', spread, f'{min(one.selected_db):.1f}'])} |"


if __name__ == "__main__":
    main()
