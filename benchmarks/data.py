"""How fast windows come from a Parquet file, how long a large file takes to start from, and what memory it takes.

    python benchmarks/data.py [--json] [--rows N] [--large N] [--folder FOLDER] [--pytorch-forecasting PYTHON]

Windows: a file of 7 observed (the target is one of them) and 4 known columns, history 168, horizon 24, batch 64, one
thread; rates are per second of CPU time, from shuffled batches of the opened file, against training steps of the model
of that shape (hidden 32) and against the loader of pytorch-forecasting, where the interpreter has it. Start and
memory: files of 20 columns, 100 series one after the other, each start in a process of its own, with a cache folder of
its own. Memory is private memory (not the page cache) at its highest while a file is read for the first time and
20 batches train.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in every process started from here

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HISTORY, HORIZON, BATCH, HIDDEN = 168, 24, 64, 32
OBSERVED = [f"observed_{number}" for number in range(6)]
KNOWN = [f"known_{number}" for number in range(4)]
MANY_OBSERVED = [f"observed_{number}" for number in range(12)]
WINDOW_ROWS, SERIES, LARGE_SERIES = 200_000, 20, 100
TRAINED_BATCHES, SECONDS = 20, 5.0
MIB = 1024  # KiB, in which /proc counts

ASKED = {
    "loader_ratio_train": ("windows per second, loader / training", ">=", 10.0),
    "loader_ratio_pytorch_forecasting": ("windows per second, loader / that of pytorch-forecasting", ">=", 5.0),
    "scan_seconds": ("first start", "<=", 20.0),
    "second_start_seconds": ("second start", "<=", 2.0),
    "memory_ratio_20m_4m": ("private memory, large file / small file", "<=", 1.1),
}


def main() -> None:
    """Measure and print, or make one measurement for the process that started this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the file to start from")
    parser.add_argument("--large", type=int, default=20_000_000, help="rows of the file whose memory is compared")
    parser.add_argument("--folder", type=Path, help="where files of 0.2 KiB a row go (default: a temporary folder)")
    parser.add_argument("--pytorch-forecasting", default=sys.executable, help="an interpreter that has it")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, *paths = arguments.measure
        sys.stdout.write(json.dumps(MEASUREMENTS[name](*map(Path, paths))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = measure_all(Path(folder), arguments.rows, arguments.large, arguments.pytorch_forecasting)
    report(figures, as_json=arguments.json)


def measure_all(folder: Path, rows: int, large: int, other_python: str) -> dict[str, Any]:
    """Return every figure; files and caches go into the folder."""
    windows = write_windows(folder / "windows.parquet")
    loader, training = in_process("loader", windows), in_process("training")
    other = in_process("pytorch_forecasting", windows, python=other_python)
    small_file = write_rows(folder / "small.parquet", rows)
    first = in_process("start", small_file, folder / "cache")
    second = in_process("start", small_file, folder / "cache")
    small = in_process("memory", small_file, folder / "small_cache")
    large_memory = in_process("memory", write_rows(folder / "large.parquet", large), folder / "large_cache")
    return {
        "loader_ratio_train": loader["windows_per_second"] / training["windows_per_second"],
        "loader_ratio_pytorch_forecasting": None
        if other is None
        else loader["windows_per_second"] / other["windows_per_second"],
        "scan_seconds": first["seconds"],
        "second_start_seconds": second["seconds"],
        "memory_ratio_20m_4m": large_memory["peak_mib"] / small["peak_mib"],
        "loader_windows_per_second": loader["windows_per_second"],
        "training_windows_per_second": training["windows_per_second"],
        "pytorch_forecasting_windows_per_second": None if other is None else other["windows_per_second"],
        "reading_seconds": first["reading_seconds"],
        "rows": [rows, large],
        "private_mib_at_start": [small["start_mib"], large_memory["start_mib"]],
        "private_mib": [small["peak_mib"], large_memory["peak_mib"]],
        "private_mib_with_mapped_pages": [small["mapped_mib"], large_memory["mapped_mib"]],
    }


def report(figures: dict[str, Any], *, as_json: bool) -> None:
    """Print the figures, those that something was asked of first."""
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    for name, (what, sign, bound) in ASKED.items():
        value = figures[name]
        shown = "not measured" if value is None else f"{value:.2f}"
        print(f"{name:34}{shown:>14}   {what}; asked: {sign} {bound:g}")
    for name, value in figures.items():
        if name not in ASKED:
            print(f"{name:40}{value}")


def in_process(name: str, *paths: Path, python: str = sys.executable) -> Any:
    """Make one measurement in a process of its own."""
    command = [python, __file__, "--measure", name, *map(str, paths)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


# Files.


def write_windows(path: Path) -> Path:
    """Write the file whose windows are counted."""
    return write_table(path, WINDOW_ROWS, SERIES, OBSERVED, KNOWN, category=False)


def write_rows(path: Path, rows: int) -> Path:
    """Write a file of 20 columns: id, time, target, 12 observed and 4 known numbers, a category."""
    return write_table(path, rows, LARGE_SERIES, MANY_OBSERVED, KNOWN, category=True)


def write_table(path: Path, rows: int, series: int, observed: list[str], known: list[str], *, category: bool) -> Path:
    """Write random rows, one series after the other, one row a minute."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    length = rows // series
    times = pa.array(np.arange(length) * 60_000, pa.timestamp("ms"))
    writer = None
    for number in range(series):
        columns = {"id": pa.array([f"series {number}"] * length), "time": times}
        columns |= {name: pa.array(random.normal(size=length)) for name in ("target", *observed)}
        columns |= {name: pa.array(random.normal(size=length).astype(np.float32)) for name in known}
        if category:
            columns["category"] = pa.array(random.integers(0, 24, length))
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=["id"])
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return path


# Measurements, each in a process of its own.


def load(path: Path, cache: Path | None, observed: list[str], *, category: bool) -> tuple[Any, Any]:
    """Return the data of a run on the file, and its configuration."""
    from qat_tft.config.data import DataConfig
    from qat_tft.config.model import ModelConfig
    from qat_tft.runs.data import load_data
    from qat_tft.schema import Columns, Schema

    known = Columns(real=tuple(KNOWN), category=("category",) if category else ())
    schema = Schema(time="time", target="target", id=("id",), observed=Columns(real=tuple(observed)), known=known)
    data = DataConfig(parquet_files=(str(path),), cache=cache is not None, cache_dir=cache and str(cache))
    model = ModelConfig(history=HISTORY, horizon=HORIZON, hidden=HIDDEN, selection="exact")
    return load_data(data, model, schema), model


def measure_loader(path: Path) -> dict[str, float]:
    """Count the windows that come in shuffled batches."""
    from qat_tft.data.loading.loader import batches

    data, _ = load(path, None, OBSERVED, category=False)

    def windows() -> Iterator[int]:
        for epoch in range(1_000_000):
            yield from (len(batch.target) for batch in batches(data.training, BATCH, shuffle=True, epoch=epoch))

    return rate(windows())


def measure_training() -> dict[str, float]:
    """Count the windows that training steps of the model take, without any loading."""
    from qat_tft.checkpointing.segments import run_directly
    from qat_tft.config.model import ModelConfig
    from qat_tft.profiling.measurement import OptimizerStep
    from qat_tft.profiling.synthetic_step import SyntheticStep
    from qat_tft.schema import GroupSize

    groups = GroupSize(0), GroupSize(1 + len(OBSERVED) + len(KNOWN)), GroupSize(len(KNOWN))
    synthetic = SyntheticStep(ModelConfig(history=HISTORY, horizon=HORIZON, hidden=HIDDEN, selection="exact"), groups)
    model = synthetic.build("fp32")
    step = OptimizerStep(model, lambda: synthetic.loss(model, run_directly, BATCH))

    def windows() -> Iterator[int]:
        while True:
            step()
            yield BATCH

    return rate(windows())


def measure_pytorch_forecasting(path: Path) -> dict[str, float] | None:
    """Count the windows that the loader of pytorch-forecasting gives from the same file; None without it."""
    try:
        from pytorch_forecasting import TimeSeriesDataSet
    except ImportError:
        return None
    import pandas as pd

    frame = pd.read_parquet(path)
    frame["step"] = frame.groupby("id").cumcount()
    data = TimeSeriesDataSet(
        frame,
        time_idx="step",
        target="target",
        group_ids=["id"],
        max_encoder_length=HISTORY,
        max_prediction_length=HORIZON,
        time_varying_unknown_reals=["target", *OBSERVED],
        time_varying_known_reals=KNOWN,
    )

    def windows() -> Iterator[int]:
        while True:
            loader = data.to_dataloader(train=True, batch_size=BATCH, num_workers=0)
            yield from (len(x["decoder_target"]) for x, _ in loader)

    return rate(windows())


def rate(windows: Iterator[int]) -> dict[str, float]:
    """Windows per second of CPU time, after a few batches to warm up."""
    for _ in range(3):
        next(windows)
    start, count = time.process_time(), 0
    while (taken := time.process_time() - start) < SECONDS:
        count += next(windows)
    return {"windows_per_second": count / taken}


def measure_start(path: Path, cache: Path) -> dict[str, float]:
    """Time from the file to windows: reading, fitting, encoding, splitting; torch is imported before."""
    import torch  # noqa: F401

    from qat_tft.data.reading import parquet
    from qat_tft.runs import data as dataset

    taken: list[float] = []
    dataset.read_panel = timed(parquet.read_panel, taken)
    start = time.perf_counter()
    load(path, cache, MANY_OBSERVED, category=True)
    return {"seconds": time.perf_counter() - start, "reading_seconds": taken[0]}


def timed(function: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    """The function, which also notes how long each call took."""

    def call(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments, **options)
        taken.append(time.perf_counter() - start)
        return result

    return call


def measure_memory(path: Path, cache: Path) -> dict[str, float]:
    """Private memory, at its highest, while the file is read for the first time and some batches train."""
    import torch

    from qat_tft.data.loading.loader import batches
    from qat_tft.model.loss import quantile_loss
    from qat_tft.runs.build import build_model

    start = private_memory()["Anonymous"] / MIB
    with watching() as highest:
        data, shape = load(path, cache, MANY_OBSERVED, category=True)
        scaling = data.preprocessing.scaling()
        model = build_model(shape, data.preprocessing, data.schema)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for number, batch in enumerate(batches(data.training, BATCH, shuffle=True)):
            if number == TRAINED_BATCHES:
                break
            inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
            target = scaling.scale_target(batch.target, batch.series)
            quantile_loss(model(*inputs).quantiles, target, shape.quantiles).backward()
            optimizer.step()
            optimizer.zero_grad()
    mapped = private_memory()
    return {
        "start_mib": start,
        "peak_mib": max(highest) / MIB,
        "mapped_mib": (mapped["Private_Clean"] + mapped["Private_Dirty"]) / MIB,
    }


@contextmanager
def watching() -> Iterator[list[int]]:
    """Collect private memory in KiB, again and again."""
    seen: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.append(private_memory()["Anonymous"])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def private_memory() -> dict[str, int]:
    """KiB by kind. A mapped page of a file counts as private where no other process maps it: Anonymous is without."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


MEASUREMENTS: dict[str, Callable[..., Any]] = {
    "loader": measure_loader,
    "training": measure_training,
    "pytorch_forecasting": measure_pytorch_forecasting,
    "start": measure_start,
    "memory": measure_memory,
}


if __name__ == "__main__":
    main()
