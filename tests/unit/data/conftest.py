"""Small Parquet files and panels for the data tests."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.schema import Columns, Schema

START = datetime(2020, 1, 1)


def two_cities(rows: int = 30, seed: int = 0) -> dict[str, Any]:
    """Columns of two series of ``rows`` hours each, one after the other."""
    random = np.random.default_rng(seed)
    hours = [START + timedelta(hours=hour) for hour in range(rows)]
    return {
        "city": ["A"] * rows + ["B"] * rows,
        "time": hours * 2,
        "y": random.normal(10, 3, 2 * rows),
        "height": [100.0] * rows + [250.0] * rows,
        "wind": random.normal(0, 1, 2 * rows),
        "sky": random.choice(["clear", "cloudy", "rain"], 2 * rows).tolist(),
        "hour": [time.hour for time in hours * 2],
        "hour_sin": np.sin([2 * np.pi * time.hour / 24 for time in hours * 2]),
    }


@pytest.fixture
def cities() -> Callable[..., dict[str, Any]]:
    return two_cities


@pytest.fixture
def city_schema() -> Schema:
    return Schema(
        time="time",
        target="y",
        id=("city",),
        static=Columns(real=("height",), category=("city",)),
        observed=Columns(real=("wind",), category=("sky",)),
        known=Columns(real=("hour_sin",), category=("hour",)),
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write columns to a Parquet file and give its path."""

    def write_file(columns: dict[str, Any], name: str = "data.parquet", **options: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path, **options)
        return path

    return write_file
