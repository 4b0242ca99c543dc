"""Small data for training: two series of a seasonal target with a known hour and a static category."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.config.run import RunConfig
from qat_tft.runs.data import RunData, load_data
from qat_tft.schema import Columns, Schema

SCHEMA = Schema(
    time="time",
    target="load",
    id=("plant",),
    static=Columns(category=("plant",)),
    observed=Columns(real=("wind",)),
    known=Columns(real=("phase",)),
)


@pytest.fixture(scope="session")
def schema() -> Schema:
    return SCHEMA


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    hours = np.arange(240)
    tables = []
    for level, plant in ((10.0, "north"), (50.0, "south")):
        tables.append(
            pa.table(
                {
                    "plant": [plant] * len(hours),
                    "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
                    "load": level + 3 * np.sin(hours * 2 * np.pi / 24) + 0.3 * random.normal(size=len(hours)),
                    "wind": random.normal(size=len(hours)),
                    "phase": np.cos(hours * 2 * np.pi / 24),
                }
            )
        )
    path = tmp_path_factory.mktemp("data") / "plants.parquet"
    pq.write_table(pa.concat_tables(tables), path)
    return path


@pytest.fixture(scope="session")
def config(data_file: Path) -> RunConfig:
    return RunConfig.checked(
        {
            "data": {"parquet_files": [str(data_file)]},
            "model": {"history": 12, "horizon": 4, "hidden": 8, "heads": 2},
            "training": {"epochs": 1, "batch_size": 16, "batches_per_epoch": 3},
            "quantization": {"use_qat": True, "products": "integer", "qat_epochs": 1, "calibration_batches": 2},
        },
        where="the test",
    )


@pytest.fixture(scope="session")
def data(config: RunConfig) -> RunData:
    return load_data(config.data, config.model, SCHEMA)
