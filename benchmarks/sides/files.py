"""Forecasts of ONNX files: our INT8 files beside the FP32 files that the peers' models export to, one thread each.

Ours come from a short real run at each workload's shape, through the commands that users have. How long a file takes
does not depend on what it has learned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from qat_tft.export.inference.session import ForecastSession, session_options
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.measures import interleaved_medians
from qat_tft.runs.files import read_json, write_json
from qat_tft.runs.folder import RunFolder
from sides.process import Program, qat_tft, working
from sides.workloads import FORM, WORKLOADS, Workload

Inputs = dict[str, npt.NDArray[Any]]
Call = Callable[[], object]

BATCHES = (1, 32)
INT8, FP32 = "ours, INT8", "ours, FP32"
SIMULATED_ROWS = 3000
TRAINING = "--epochs 1 --batches-per-epoch 30 --qat-epochs 1 --use-qat --use-gradient-checkpointing"
LEAST_ROUNDS = 5


@dataclass(frozen=True)
class TimedFiles:
    """Files of one workload.

    Attributes:
        milliseconds: file to batch to median CPU time of a forecast.
        bytes: file to size.
        how: peer to the way its model was exported.
    """

    milliseconds: dict[str, dict[int, float]]
    bytes: dict[str, int]
    how: dict[str, str]


def timed_files(name: str, peers: Mapping[str, Program], runs: Path, seconds: float) -> TimedFiles:
    """Time the files of a workload, in turn; those that lie in the folder of runs already are taken as they are.

    Args:
        name: of the workload.
        peers: the program of each peer.
        runs: folder of our runs and of the peers' files.
        seconds: about how long to time each batch.
    """
    ours = our_run(name, runs)
    exported = {peer: peer_files(program, runs / f"{name}-{peer}") for peer, program in peers.items()}
    paths = {INT8: ours.onnx_file("int8"), FP32: ours.onnx_file("fp32")}
    milliseconds: dict[str, dict[int, float]] = {}
    for batch in BATCHES:
        calls = {file: _our_call(path, ours, batch) for file, path in paths.items()}
        calls |= {peer: _peer_call(runs / f"{name}-{peer}", found, batch) for peer, found in exported.items()}
        medians = interleaved_medians(calls, seconds, clock=time.process_time, least=LEAST_ROUNDS)
        for file, median in medians.items():
            milliseconds.setdefault(file, {})[batch] = median
    sizes = {file: path.stat().st_size for file, path in paths.items()}
    for peer, found in exported.items():
        sizes[peer] = (runs / f"{name}-{peer}" / found["files"][str(BATCHES[0])]).stat().st_size
    return TimedFiles(milliseconds, sizes, {peer: found["how"] for peer, found in exported.items()})


def our_run(name: str, runs: Path) -> RunFolder:
    """Return a run of a workload's shape with its files, trained and exported unless it is there."""
    where = ("--runs-dir", str(runs))
    if not (runs / name).exists():
        workload = WORKLOADS[name]
        qat_tft("train", *_data_of(name, runs), *shape_options(workload), *TRAINING.split(), "--name", name, *where)
    run = RunFolder.open(runs / name)
    if not run.onnx_file("int8").exists():
        qat_tft("export", name, "--int8", *where)
    return run


def shape_options(workload: Workload) -> Iterator[str]:
    """Yield the options of `qat-tft train` for a workload in the measured form."""
    shape = ("history", "horizon", "hidden", "heads", "dropout")
    named = {name: getattr(workload, name) for name in shape} | {"batch-size": workload.batch}
    for option, value in {**named, **FORM}.items():
        yield from (f"--{option}", str(value))


def _data_of(name: str, runs: Path) -> list[str]:
    """Return the options that name the workload's data, which are simulated: files of the workload's columns."""
    path = runs / f"{name}.parquet"
    if name == "w1":
        if not path.exists():
            qat_tft("sample-data", "--preset", "tft225", "--out", str(path))
        return ["--parquet-file", str(path)]
    table = simulated(WORKLOADS[name])
    if not path.exists():
        pq.write_table(table, path)
    roles = [f"--{role}={','.join(_columns(table, role))}" for role in ("observed", "known")]
    return ["--parquet-file", str(path), "--time", "time", "--target", "target", *roles]


def simulated(workload: Workload) -> pa.Table:
    """Return hourly rows of a workload's observed and known columns: daily waves, the observed ones with noise."""
    random = np.random.default_rng(0)
    hours = np.arange(SIMULATED_ROWS)
    columns = {"time": pa.array(hours * 3_600_000, pa.timestamp("ms"))}
    names = ["target", *(f"observed_{place}" for place in range(workload.observed - 1))]
    for phase, name in enumerate([*names, *(f"known_{place}" for place in range(workload.known))]):
        wave = np.sin(2 * np.pi * (hours + phase) / 24)
        columns[name] = wave if name.startswith("known") else wave + 0.3 * random.normal(size=SIMULATED_ROWS)
    return pa.table(columns)


def _columns(table: pa.Table, role: str) -> list[str]:
    return [name for name in table.column_names if name.startswith(f"{role}_")]


def peer_files(program: Program, folder: Path) -> dict[str, Any]:
    """Return what a peer's model was exported to, exported unless the folder is there: `how`, and file by batch."""
    report = folder / "export.json"
    if not report.exists():
        with working(program) as worker:
            write_json(report, worker.ask("export", folder=str(folder.absolute()), batches=list(BATCHES)))
    found: dict[str, Any] = read_json(report)
    return found


def _peer_call(folder: Path, exported: Mapping[str, Any], batch: int) -> Call:
    session = _session(folder / exported["files"][str(batch)])
    with np.load(folder / f"b{batch}.npz") as saved:
        asked = {node.name for node in session.get_inputs()}
        inputs = {name: saved[name] for name in saved.files if name in asked}
    return partial(session.run, None, inputs)


def _our_call(path: Path, run: RunFolder, batch: int) -> Call:
    windows = run.load_check_windows()
    rows = torch.arange(batch) % len(windows.target)
    inputs: Inputs = window_inputs(windows, rows, ForecastSession(path).metadata)
    return partial(_session(path).run, None, inputs)


def _session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), session_options(optimized=True, threads=1), ["CPUExecutionProvider"])
