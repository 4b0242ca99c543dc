"""Small data for training, two series of a seasonal target, and an object store on the loopback address."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

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


OBJECT_SERVER = Path(__file__).resolve().parents[2] / "benchmarks" / "sides" / "object_server.py"


@pytest.fixture(scope="session")
def object_server() -> ModuleType:
    spec = spec_from_file_location("object_server", OBJECT_SERVER)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def store(object_server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server that holds nothing yet; the environment names it and has credentials for it."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with object_server.ObjectServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-shown")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield server
