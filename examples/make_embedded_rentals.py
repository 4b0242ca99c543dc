"""Rebuild the embedded bike rentals from a Parquet file of the whole data set (UCI 275, hour.csv).

    python examples/make_embedded_rentals.py bike_sharing_hourly.parquet qat_tft/data/sample/embedded

In that file date and hour are one column `time`, the numbers of seasons and weather classes are words, and the
weather values are multiplied back: `temp_c` by 41, `feel_temp_c` by 50, `humidity` by 100, `wind_speed` by 67.
Here columns are left out, and nothing else is changed.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NAME = "rentals_2011_2012.parquet"
TARGET = "cnt"
CALENDAR = ["season", "holiday", "working_day", "weekday", "hour", "month"]
WEATHER = ["weather", "temp_c", "feel_temp_c", "humidity", "wind_speed"]
ABOUT = {
    "title": "Hourly bike rentals in Washington, D.C., 2011 and 2012",
    "source": "UCI Machine Learning Repository, data set 275: H. Fanaee-T and J. Gama, doi:10.1007/s13748-013-0040-3",
    "licence": "CC BY 4.0",
    "changed": "casual and registered left out; date and hour joined; classes named; weather values multiplied back",
    "time": "local clock without a time zone; the 165 hours without a rental have no row",
}


def main(source: Path, folder: Path) -> None:
    table = rentals(pq.read_table(source))
    path = folder / NAME
    pq.write_table(table, path, compression="zstd", compression_level=19)
    print(f"{table.num_rows} rows, {path.stat().st_size} bytes")


def rentals(table: pa.Table) -> pa.Table:
    """Return the rows as they stand, without the two parts of the target and the name of the only series."""
    parts = pc.add(table["casual"], table["registered"])
    if not pc.all(pc.equal(parts, table[TARGET])).as_py():
        sys.exit(f"casual and registered do not add up to {TARGET}")
    times = table["time"].combine_chunks()
    if not pc.all(pc.less(times[:-1], times[1:])).as_py():
        sys.exit("time is not sorted, or repeats an hour")
    return table.select(["time", TARGET, *CALENDAR, *WEATHER]).replace_schema_metadata(ABOUT)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
