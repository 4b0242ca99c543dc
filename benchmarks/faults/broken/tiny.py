"""The run that every trial damages a copy of: two short series, a model of a few weights, trained for seconds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from faults.broken.case import DATA, SCHEMA, SETTINGS
from qat_tft.cli.app import main
from qat_tft.training.progress import PhaseStart, Silent

HOURS = 180

SCHEMA_TOML = """time = "time"
target = "load"
id = ["plant"]
[static]
category = ["plant"]
[observed]
real = ["wind"]
[known]
real = ["hour"]
category = ["shift"]
"""

SETTINGS_TOML = """[data]
cache = false
[model]
history = 6
horizon = 3
hidden = 16
heads = 2
knots = 5
[training]
epochs = 1
batch_size = 16
batches_per_epoch = 2
validation_windows = 16
test_windows = 16
[quantization]
use_qat = true
products = "integer"
calibrator = "min-max"
qat_epochs = 1
calibration_batches = 2
"""


def table() -> pa.Table:
    """Return the rows: two plants, hour by hour."""
    random = np.random.default_rng(0)
    hours = np.arange(HOURS)
    return pa.concat_tables(
        pa.table(
            {
                "plant": [plant] * HOURS,
                "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
                "load": level + 3 * np.sin(hours * 2 * np.pi / 24) + random.normal(size=HOURS),
                "wind": random.normal(size=HOURS),
                "hour": (hours % 24).astype(np.float64),
                "shift": ["day" if 6 <= hour % 24 < 18 else "night" for hour in hours],
            }
        )
        for level, plant in ((10.0, "north"), (50.0, "south"))
    )


def make(folder: Path, exported: bool) -> int:
    """Write data, settings, a finished run, exported and checked or not, and one that stopped after its first step."""
    pq.write_table(table(), folder / DATA)
    (folder / SCHEMA).write_text(SCHEMA_TOML)
    (folder / SETTINGS).write_text(SETTINGS_TOML)
    train = f"train --parquet-file {DATA} --schema {SCHEMA} --config {SETTINGS} --runs-dir runs --name"
    with_files = (f"{train} tiny --use-int8", "check --run tiny --seconds 0 --runs-dir runs")
    for line in with_files if exported else (f"{train} tiny",):
        code = main(line.split())
        if code:
            return code
    return _unfinished(folder)


def _unfinished(folder: Path) -> int:
    from qat_tft.config.run import RunConfig
    from qat_tft.schema import Schema
    from qat_tft.training.interrupt import Interrupted
    from qat_tft.training.job import train

    class Stopping(Silent):
        def phase(self, start: PhaseStart) -> None:  # it stops after the first step
            os.kill(os.getpid(), signal.SIGINT)

    config = RunConfig.from_toml(f"{SETTINGS_TOML.replace('[data]', f'[data]{chr(10)}parquet_files = [{DATA!r}]')}")
    try:
        train(config, Schema.from_toml(SCHEMA_TOML), runs_dir=folder / "runs", name="half", progress=Stopping())
    except Interrupted:
        return 0
    return 1
