"""Rebuild the embedded temperature data set from the CSV files of the Python package vega-datasets 0.9.0.

    pip install vega-datasets==0.9.0
    python examples/make_embedded_temperatures.py qat_tft/data/sample/embedded

Temperatures and hours stand as they are in the source; only calendar columns are computed and added.
"""

import csv
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CITIES = {"San Francisco": "sf-temps.csv", "Seattle": "seattle-temps.csv"}
FORMATS = {1: "%Y/%m/%d %H:%M", 2: "%Y/%m/%d %H:%M:%S"}


def main(folder: Path) -> None:
    tables = [city_table(city, source_folder() / file) for city, file in CITIES.items()]
    table = pa.concat_tables(tables).replace_schema_metadata(
        {
            "title": "Hourly temperatures of Seattle and San Francisco, 2010",
            "source": "NOAA, by way of the Python package vega-datasets 0.9.0",
            "licence": "public domain",
            "unit of temperature": "degree Fahrenheit",
            "time": "local clock without a time zone; 2010-03-14 03:00 is missing in both series",
        }
    )
    pq.write_table(table, folder / "temperatures_2010.parquet", compression="zstd", compression_level=19)
    print(f"{table.num_rows} rows, {(folder / 'temperatures_2010.parquet').stat().st_size} bytes")


def source_folder() -> Path:
    found = find_spec("vega_datasets")
    if found is None or found.origin is None:
        sys.exit("this needs the package vega-datasets: pip install vega-datasets==0.9.0")
    return Path(found.origin).parent / "_data"


def city_table(city: str, path: Path) -> pa.Table:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = [datetime.strptime(row["date"], FORMATS[row["date"].count(":")]) for row in rows]
    if len(set(times)) != len(times) or times != sorted(times):
        sys.exit(f"{path} is not sorted, or repeats an hour")
    hour = np.array([time.hour for time in times])
    return pa.table(
        {
            "city": pa.array([city] * len(rows)),
            "time": pa.array(times, pa.timestamp("s")),
            "temperature": pa.array([float(row["temp"]) for row in rows], pa.float64()),
            "hour": pa.array(hour, pa.int8()),
            "hour_sin": pa.array(np.sin(2 * np.pi * hour / 24), pa.float32()),
            "hour_cos": pa.array(np.cos(2 * np.pi * hour / 24), pa.float32()),
            "day_of_year": pa.array([time.timetuple().tm_yday for time in times], pa.int16()),
            "month": pa.array([time.month for time in times], pa.int8()),
        }
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
