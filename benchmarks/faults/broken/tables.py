"""Parquet files that are whole and hold what no run can use, or names that a terminal obeys, or are no such files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faults.broken.case import (
    DATA,
    INSPECT,
    INSPECT_AS_JSON,
    PREDICT,
    PREDICT_FP32,
    REFUSED,
    SCHEMA,
    TRAIN,
    TRAIN_AS_DECLARED,
    Case,
    Cases,
    Damage,
    edit,
    put,
)
from faults.broken.tiny import SCHEMA_TOML, table

_HOSTILE_NAMES = {
    "escape": "\x1b[31mred\x1b]0;title\x07",
    "newline": "load\nerror: forged",
    "carriage return": "load\rOK",
    "markup": "[bold red]load[/] :smile:",
    "NUL": "lo\x00ad",
    "C1": "lo\x9b31mad",
    "right to left": "lo\u202edaol",
    "empty": "",
    "blank": "  ",
    "TOML": 'a"]\nreal = ["b',
    "long": "n" * 50_000,
    "derived": "history.present",
    "path": "../../x",
    "surrogates": "\U0001f4a9" * 40,
}


def cases(drawn: random.Random) -> Cases:
    """Return every broken table."""
    yield from _of_other_content(drawn)
    yield from _of_hostile_names(drawn)
    yield from _of_other_files(drawn)


def _of_other_content(drawn: random.Random) -> Cases:
    rows = table()
    count = rows.num_rows
    times = rows["time"]
    other: dict[str, Callable[[], pa.Table]] = {
        "no columns": lambda: rows.select([]),
        "no rows": lambda: rows.slice(0, 0),
        "one row": lambda: rows.slice(0, 1),
        "two columns of one name": lambda: pa.table([*rows.columns, rows["load"]], [*rows.column_names, "load"]),
        "a target of lists": lambda: _with("load", pa.array([[1.0, 2.0]] * count)),
        "a target of structs": lambda: _with("load", pa.array([{"a": 1.0}] * count)),
        "a target of maps": lambda: _with("load", pa.array([[("a", 1)]] * count, pa.map_(pa.string(), pa.int64()))),
        "a target nested a hundred times": lambda: _with("load", _nested(count, 100)),
        "a target of nulls": lambda: _with("load", pa.nulls(count, pa.float64())),
        "a target without a type": lambda: _with("load", pa.nulls(count)),
        "a target of infinities": lambda: _with("load", pa.array([float("inf")] * count)),
        "a target of the largest numbers": lambda: _with("load", pa.array([1.7e308, -1.7e308] * (count // 2))),
        "a target of the least numbers": lambda: _with("load", pa.array([5e-324, 1e-310] * (count // 2))),
        "a target of decimals": lambda: _with("load", pa.array([Decimal(10) ** 60] * count, pa.decimal256(70, 2))),
        "a target of large whole numbers": lambda: _with("load", pa.array([2**64 - 1] * count, pa.uint64())),
        "a target of durations": lambda: _with("load", pa.array([2**62] * count, pa.duration("s"))),
        "a target of bytes": lambda: _with("load", pa.array([b"\xff\x00"] * count)),
        "a target of times of day": lambda: _with("load", pa.array([1] * count, pa.time64("ns"))),
        "ids that are no UTF-8": lambda: _with("plant", _no_text(count)),
        "ids that obey a terminal": lambda: _with("plant", pa.array(["\x1b[2J\x07", "a\nerror: b"] * (count // 2))),
        "ids of lists": lambda: _with("plant", pa.array([["a"]] * count)),
        "an id of 4 MB": lambda: _with("plant", pa.array(["n" * 4_000_000] * 2 + ["south"] * (count - 2))),
        "an id for every row": lambda: _with("plant", pa.array([str(row) for row in range(count)])),
        "categories that obey a terminal": lambda: _with("shift", pa.array(["\x1b]0;x\x07", "[/]"] * (count // 2))),
        "categories of another type": lambda: _with("shift", pa.array([1.5, float("nan")] * (count // 2))),
        "times of the first day": lambda: _with("time", pa.array([-(2**63) + 1] * count, pa.timestamp("ns"))),
        "times of the last day": lambda: _with("time", pa.array([2**63 - 1] * count, pa.timestamp("us"))),
        "times in seconds beyond": lambda: _with(
            "time", pa.array([10**15 + n for n in range(count)], pa.timestamp("s"))
        ),
        "times of both ends": lambda: _with("time", _both_ends(count)),
        "steps of both ends": lambda: _with("time", _both_ends(count).cast(pa.int64())),
        "times in no zone": lambda: _with("time", times.cast(pa.timestamp("ns", "Nowhere/\x1b[31m"))),
        "times of text": lambda: _with("time", pa.array(["2024-13-45", "\x1b[1m"] * (count // 2))),
        "times that are missing": lambda: _with("time", pa.nulls(count, pa.timestamp("ns"))),
        "known numbers of text": lambda: _with("hour", pa.array(["\x1b[5m", "12"] * (count // 2))),
        "numbers beyond a float": lambda: _with("wind", pa.array([1e300, -1e300] * (count // 2))),
        "a dictionary of structs": lambda: _with("wind", _dictionary_of_structs(count)),
        "two thousand columns": lambda: _widened(2000),
        "metadata of fields": lambda: _with_metadata({b"qat_tft.role": b"\xff\xfe\x1b[31m"}),
        "metadata of a field with no role": lambda: _with_metadata({b"qat_tft.role": b"known:\x1b[31m:real"}),
    }
    for name, make in other.items():
        command = drawn.choice((INSPECT, TRAIN_AS_DECLARED if "metadata" in name else TRAIN, PREDICT_FP32))
        yield Case(f"Parquet with {name}", command, _table(make))


def _table(make: Callable[[], pa.Table]) -> Damage:
    return lambda folder: pq.write_table(make(), folder / DATA)


def _with(column: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    rows = table()
    return rows.set_column(rows.column_names.index(column), column, values)


def _nested(count: int, depth: int) -> pa.Array:
    values = pa.array([1.0] * count)
    for _ in range(depth):
        values = pa.StructArray.from_arrays([values], ["inner"])
    return values


def _no_text(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), count, pa.array([b"\xff\xfe"] * count, pa.binary()).buffers())


def _both_ends(count: int) -> pa.Array:
    return pa.array([-(2**63) + 2 + row if row % 2 else 2**63 - 2 - row for row in range(count)], pa.timestamp("ns"))


def _dictionary_of_structs(count: int) -> pa.Array:
    return pa.array([{"a": 1}] * count)


def _widened(count: int) -> pa.Table:
    rows = table()
    for number in range(count):
        rows = rows.append_column(f"column {number}", rows["wind"])
    return rows


def _with_metadata(metadata: dict[bytes, bytes]) -> pa.Table:
    rows = table()
    return rows.cast(pa.schema([field.with_metadata(metadata) for field in rows.schema]))


def _of_hostile_names(drawn: random.Random) -> Cases:
    for kind, name in _HOSTILE_NAMES.items():
        for command in (INSPECT, drawn.choice((INSPECT_AS_JSON, TRAIN, PREDICT))):
            yield Case(f"Parquet whose column is called by {kind}", command, _renamed("load", name))
        yield Case(f"Parquet and schema whose column is called by {kind}", TRAIN, _renamed_in_both("wind", name))


def _renamed(column: str, name: str) -> Damage:
    def damage(folder: Path) -> None:
        rows = table()
        names = [name if own == column else own for own in rows.column_names]
        pq.write_table(rows.rename_columns(names), folder / DATA)

    return damage


def _renamed_in_both(column: str, name: str) -> Damage:
    def damage(folder: Path) -> None:
        _renamed(column, name)(folder)
        quoted = "".join(f"\\U{ord(character):08X}" for character in name)
        (folder / SCHEMA).write_text(SCHEMA_TOML.replace(f'"{column}"', f'"{quoted}"'))

    return damage


def _of_other_files(drawn: random.Random) -> Cases:
    no_utf8 = edit(DATA, lambda content: content.replace(b"\x04load", b"\x04lo\xff\xfe"))
    files: dict[str, Damage] = {
        "names that are no UTF-8": no_utf8,
        "a folder that holds itself": _loop,
        "a pipe": lambda folder: (_gone(folder), os.mkfifo(folder / DATA)),
        "a device without an end": lambda folder: (_gone(folder), (folder / DATA).symlink_to("/dev/zero")),
        "a link to nowhere": lambda folder: (_gone(folder), (folder / DATA).symlink_to("nowhere")),
        "a link to itself": lambda folder: (_gone(folder), (folder / DATA).symlink_to(DATA)),
        "CSV": put(DATA, "time,load\n2024-01-01,1\n"),
        "a pickle": put(DATA, b"cos\nsystem\n(S'touch executed'\ntR."),
        "an encrypted file": edit(DATA, lambda content: b"PARE" + content[4:-4] + b"PARE"),
        "two files that differ": _two_files,
        "hostile partitions": _partitions,
        "a name of 300 characters": lambda folder: put(SCHEMA, SCHEMA_TOML.replace("load", "n" * 300))(folder),
    }
    for name, damage in files.items():
        for command in drawn.sample((INSPECT, TRAIN, PREDICT), 2):
            allowed = REFUSED if name in ("CSV", "a pickle", "a pipe", "a link to nowhere") else (0, 2)
            yield Case(f"Parquet that is {name}", command, damage, allowed)


def _gone(folder: Path) -> None:
    (folder / DATA).unlink()


def _loop(folder: Path) -> None:
    _gone(folder)
    (folder / DATA).mkdir()
    (folder / DATA / "again").symlink_to(folder / DATA)


def _two_files(folder: Path) -> None:
    _gone(folder)
    (folder / DATA).mkdir()
    pq.write_table(table(), folder / DATA / "one.parquet")
    later = table().drop_columns(["wind"]).append_column("wind", pa.array([datetime(2024, 1, 1)] * table().num_rows))
    pq.write_table(later, folder / DATA / "two.parquet")


def _partitions(folder: Path) -> None:
    _gone(folder)
    inside = folder / DATA / "plant=%1b[31m%0aerror: x" / "hour=%ff%fe" / "=x"
    inside.mkdir(parents=True)
    pq.write_table(table(), inside / "one.parquet")
