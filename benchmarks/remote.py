"""What it costs that rows come from an object store: the first scan of a file over S3 against the same file here.

    python benchmarks/remote.py [--json] [--rows N] [--repeats N]

Both scans read a Parquet file of 20 columns (12 observed with the target, 8 known), 100 series one after the other,
without a cache, in turns; of each the median is taken. The store is `sides/object_server.py` in a process of its own on
the loopback address, which takes one of the cores and no time to travel: `server_seconds` is what plain requests for
the same bytes take, one after the other, and says how much of the difference is the server's.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SERIES = 100
OBSERVED = [f"observed_{number}" for number in range(11)]
KNOWN = [f"known_{number}" for number in range(8)]
ROW_GROUP = 131_072
ASKED = 2.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_rows(Path(folder) / "rows.parquet", arguments.rows)
        with served(Path(folder)) as address:
            figures = measure(path, address, arguments.repeats)
    figures |= {"rows": arguments.rows, "repeats": arguments.repeats}
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"remote_over_local {figures['remote_over_local']:.2f}   asked: <= {ASKED:g}")
    for name, value in figures.items():
        if name != "remote_over_local":
            print(f"{name:20}{value}")


def measure(path: Path, address: str, repeats: int) -> dict[str, float]:
    """Scan here and there in turns; the first round is not counted."""
    os.environ |= {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    here, there, plain = [], [], []
    for _ in range(repeats + 1):
        here.append(scan_seconds(str(path)))
        there.append(scan_seconds(f"s3://data/{path.name}"))
        plain.append(fetch_seconds(f"{address}/data/{path.name}"))
    local, remote, server = (statistics.median(seconds[1:]) for seconds in (here, there, plain))
    return {
        "remote_over_local": remote / local,
        "local_seconds": local,
        "remote_seconds": remote,
        "server_seconds": server,
        "file_mib": path.stat().st_size / 2**20,
    }


def scan_seconds(place: str) -> float:
    """Time of one first scan without a cache."""
    from qat_tft.data.reading.parquet import read_panel
    from qat_tft.schema import Columns, Schema

    schema = Schema(time="time", target="y", id=("id",), observed=Columns(real=OBSERVED), known=Columns(real=KNOWN))
    start = time.perf_counter()
    read_panel(place, schema)
    return time.perf_counter() - start


def fetch_seconds(url: str) -> float:
    """Time of one plain download by pieces that are thrown away."""
    start = time.perf_counter()
    with urlopen(url) as answer:
        while answer.read(2**20):
            pass
    return time.perf_counter() - start


def write_rows(path: Path, rows: int) -> Path:
    """Write random numbers as float32, with ids and steps."""
    random = np.random.default_rng(0)
    each = -(-rows // SERIES)
    columns = {
        "id": pa.array(np.repeat(np.arange(SERIES), each)[:rows]),
        "time": np.tile(np.arange(each), SERIES)[:rows],
    }
    columns |= {name: random.normal(size=rows).astype(np.float32) for name in ("y", *OBSERVED, *KNOWN)}
    pq.write_table(pa.table(columns), path, row_group_size=ROW_GROUP)
    return path


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder from another process while the block runs: the address."""
    script = Path(__file__).with_name("sides") / "object_server.py"
    command = [sys.executable, str(script), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.communicate()


if __name__ == "__main__":
    main()
