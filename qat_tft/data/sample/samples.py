"""Sample data: the embedded bike rentals and simulated futures bars in the reference shape."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import RenderableType
from rich.text import Text

from qat_tft.atomic import written_together
from qat_tft.data.roles.field_metadata import with_declared_roles
from qat_tft.data.sample.simulation import CONTRACTS, KNOWN, Bars, simulate
from qat_tft.errors import SampleDataError
from qat_tft.plain import Plain
from qat_tft.schema import Columns, Schema

PRESETS = ("tft225", "rentals")
DEFAULT_ROWS = 20_000

_EMBEDDED = Path(__file__).parent / "embedded"
_SEED = 225
_LABEL = "SIMULATED futures bars: random numbers, not prices of any market"
_GROUP_ROWS = 65_536


@dataclass(frozen=True)
class Sample(Plain):
    """A sample file that was written."""

    path: str
    schema_path: str
    rows: int
    columns: int
    bytes: int
    simulated: bool
    title: str

    def tables(self) -> list[RenderableType]:
        """Three lines for the terminal."""
        return [
            Text(self.title),
            Text(f"{self.path}: {self.rows:,} rows, {self.columns} columns, {self.bytes:,} bytes"),
            Text(f"{self.schema_path}: its schema"),
        ]


def embedded_rentals() -> tuple[Path, Schema]:
    """The Parquet file in the package and its schema.

    Hourly bike rentals in Washington, D.C., 2011 and 2012, with calendar and weather, 17,379 rows; Fanaee-T and Gama,
    CC BY 4.0. The file NOTICE beside it gives credit and tells what to know about them.
    """
    return _EMBEDDED / "rentals_2011_2012.parquet", Schema.read(_EMBEDDED / "rentals_2011_2012.schema.toml")


def schema_path(data: Path) -> Path:
    """Where the schema of a file stands: beside it, ``F.parquet`` -> ``F.schema.toml``."""
    return data.with_suffix(".schema.toml")


def write_sample(preset: str, rows: int | None, out: str | Path, *, overwrite: bool = False, seed: int = _SEED) -> Path:
    """Write sample data and, beside it, its schema.

    Args:
        preset: "tft225": simulated bars of four contracts, 5 static, 210 observed (the target ``close`` among
            them) and 10 known columns. "rentals": a copy of the embedded data.
        rows: rows in all, default 20,000; only for "tft225".
        out: the Parquet file to write.
        overwrite: replace files that are there already.
        seed: of the simulation; the same seed gives the same file.

    Returns:
        The path of the Parquet file.

    Raises:
        SampleDataError: an unknown preset, too few rows, a file in the way or one that cannot be written.
    """
    out = Path(out)
    if preset not in PRESETS:
        raise SampleDataError(f"there is no preset {preset!r}", allowed=", ".join(PRESETS))
    if preset == "rentals" and rows is not None:
        raise SampleDataError("the number of rows of the rentals is fixed", next_step="Leave the number of rows out.")
    rows = DEFAULT_ROWS if rows is None else rows
    if rows < len(CONTRACTS):
        raise SampleDataError(f"{rows} rows are too few", allowed=f"at least {len(CONTRACTS)}, one per contract")
    taken = [path for path in (out, schema_path(out)) if path.exists()]
    if taken and not overwrite:
        raise SampleDataError(
            "the file already exists", where=str(taken[0]), next_step="Choose another name, or pass --overwrite."
        )
    try:
        with written_together(schema_path(out), out) as (schema, data):
            if preset == "rentals":
                bundled, _ = embedded_rentals()
                shutil.copyfile(bundled, data)
                shutil.copyfile(schema_path(bundled), schema)
            else:
                _write_bars(data, rows, seed)
                schema.write_text(f"# {_LABEL}.\n{simulated_schema().to_toml()}", encoding="utf-8")
    except OSError as failure:
        raise SampleDataError(
            f"the file cannot be written: {failure.strerror or failure}",
            where=str(out),
            next_step="Choose a folder that exists and may be written to.",
        ) from None
    return out


def describe_sample(path: Path) -> Sample:
    """What ``write_sample`` has written to ``path``."""
    footer = pq.read_metadata(path)
    about = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items() if key != b"ARROW:schema"}
    return Sample(
        path=str(path),
        schema_path=str(schema_path(path)),
        rows=footer.num_rows,
        columns=footer.num_columns,
        bytes=path.stat().st_size,
        simulated=about.get("simulated") == "true",
        title=about["title"],
    )


def simulated_schema() -> Schema:
    """The schema of the simulated bars: 5 static, 209 observed + the target, 10 known, all real."""
    bars = next(simulate(len(CONTRACTS), _SEED))
    return Schema(
        time="time",
        target="close",
        id=("contract",),
        static=Columns(real=tuple(bars.contract.static())),
        observed=Columns(real=tuple(bars.observed)),
        known=Columns(real=KNOWN),
    )


def _write_bars(path: Path, rows: int, seed: int) -> None:
    writer = None
    try:
        for bars in simulate(rows, seed):  # one contract in memory at a time
            table = _table(bars, seed)
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=_GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()


def _table(bars: Bars, seed: int) -> pa.Table:
    count = len(bars.close)
    columns = {
        "contract": pa.array([bars.contract.name] * count),
        "time": pa.array(bars.time.astype("datetime64[s]"), pa.timestamp("s", tz="UTC")),
        "close": pa.array(bars.close.astype(np.float32)),
    }
    for name, value in bars.contract.static().items():
        columns[name] = pa.array(np.full(count, value, dtype=np.float32))
    for name, values in (bars.observed | bars.known).items():
        columns[name] = pa.array(values.astype(np.float32))
    table = pa.table(columns)
    declared = with_declared_roles(table.schema, simulated_schema())
    about = {"simulated": "true", "title": _LABEL, "seed": str(seed)}
    return table.cast(declared).replace_schema_metadata(about)
