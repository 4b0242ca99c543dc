"""Damage to the bytes of Parquet files: footers, page headers and pages, in several encodings."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from faults.broken import byte_damage as damaged
from faults.broken.case import BACKTEST_DATA, DATA, INSPECT, PREDICT, TRAIN, Case, Cases, Damage, edit
from faults.broken.tiny import table

_READERS = (INSPECT, TRAIN, PREDICT, BACKTEST_DATA)
_LAST = 8  # length of the footer and magic


@dataclass(frozen=True)
class Encoding:
    """One way to write the same rows."""

    name: str
    options: dict[str, Any]


_ENCODINGS = (
    Encoding("snappy, dictionaries", {}),
    Encoding("plain", {"compression": "none", "use_dictionary": False, "row_group_size": 100}),
    Encoding("zstd, pages v2", {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 256}),
    Encoding("brotli, split", {"compression": "brotli", "use_dictionary": False, "use_byte_stream_split": ["load"]}),
    Encoding("gzip, checksums", {"compression": "gzip", "write_page_checksum": True, "store_schema": False}),
    Encoding(
        "lz4, delta",
        {
            "compression": "lz4",
            "use_dictionary": False,
            "column_encoding": {"plant": "DELTA_BYTE_ARRAY", "time": "DELTA_BINARY_PACKED", "load": "PLAIN"},
        },
    ),
)


def cases(drawn: random.Random) -> Cases:
    """Return every Parquet file whose bytes are damaged."""
    for encoding in _ENCODINGS:
        for name, change in _byte_damages(drawn):
            yield Case(f"Parquet ({encoding.name}), {name}", drawn.choice(_READERS), _rewritten(encoding, change))
    for count in (-1, 0, 2**31, 2**40, 2**62):
        for place in range(4):
            change = _with_count(count, place)
            damage = _rewritten(_ENCODINGS[0], change)
            yield Case(f"Parquet, count {place} of rows is {count}", drawn.choice(_READERS), damage)


def _byte_damages(drawn: random.Random) -> list[tuple[str, damaged.Change]]:
    return [
        ("cut to nothing", damaged.cut(0.0)),
        ("cut at the magic", lambda content: content[:4]),
        ("cut in the middle", damaged.cut(drawn.random())),
        ("cut in the footer", damaged.without_end(drawn.randrange(9, 200))),
        ("without its last byte", damaged.without_end(1)),
        ("length of the footer is huge", lambda content: content[:-_LAST] + b"\xff\xff\xff\x7f" + content[-4:]),
        ("length of the footer is 0", lambda content: content[:-_LAST] + bytes(4) + content[-4:]),
        ("one bit of the footer", _in_footer(drawn, 1)),
        ("another bit of the footer", _in_footer(drawn, 1)),
        ("some bits of the footer", _in_footer(drawn, 12)),
        ("first page header", damaged.flipped(drawn, 0.0003, 0.002)),
        ("one bit of the pages", damaged.flipped(drawn, 0.01, 0.6)),
        ("many bits of the pages", damaged.flipped(drawn, 0.01, 0.6, count=40)),
        ("noise in the middle", damaged.overwritten(drawn, 200)),
        ("zeros in the middle", damaged.overwritten(drawn, 200, 0)),
    ]


def _rewritten(encoding: Encoding, change: damaged.Change) -> Damage:
    def damage(folder: Path) -> None:
        pq.write_table(table(), folder / DATA, **encoding.options)
        edit(DATA, change)(folder)

    return damage


def _footer(content: bytes) -> int:
    """Where the footer begins."""
    return len(content) - _LAST - int.from_bytes(content[-_LAST:-4], "little")


def _in_footer(drawn: random.Random, count: int) -> damaged.Change:
    flip = damaged.flipped(drawn, count=count)

    def change(content: bytes) -> bytes:
        begin = _footer(content)
        return content[:begin] + flip(content[begin:-_LAST]) + content[-_LAST:]

    return change


def _with_count(count: int, place: int) -> damaged.Change:
    """Say another number of rows in the footer, where it stands for the nth time; numbers of Thrift have any length."""

    def change(content: bytes) -> bytes:
        begin = _footer(content)
        own = _varint(table().num_rows)
        parts = content[begin:-_LAST].split(own)
        place_there = place % (len(parts) - 1)
        footer = own.join(parts[: place_there + 1]) + _varint(count) + own.join(parts[place_there + 1 :])
        return content[:begin] + footer + len(footer).to_bytes(4, "little") + content[-4:]

    return change


def _varint(number: int) -> bytes:
    value, written = (number << 1) ^ (number >> 63), bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
