"""A mapped or cached panel is bitwise identical to the one in memory; what is stale or damaged is read again."""

import dataclasses
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qat_tft.data.loading.loader import batches
from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading import cache, parquet
from qat_tft.data.reading.cache import HEADER
from qat_tft.data.reading.fingerprint import fingerprint
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Split
from qat_tft.data.windows import Windows
from qat_tft.errors import DataError
from qat_tft.lock import Hold
from qat_tft.schema import Schema

Write = Callable[..., Path]
Cities = Callable[..., dict[str, Any]]
Read = Callable[..., Panel]
FullDisk = Callable[[int], AbstractContextManager[None]]

UNEVEN = Preparation(duplicates="last", gaps="fill", missing=("forward",), calendar=("hour",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAPPED_BYTES", 1)


def uneven(cities: Cities) -> dict[str, Any]:
    """Unsorted rows with gaps, a duplicate and a missing value."""
    columns = cities(30)
    rows = np.random.default_rng(1).permutation([*range(7), *range(9, 60), 40])
    columns["y"][13] = np.nan
    return {name: [values[row] for row in rows] for name, values in columns.items()}


def assert_same(one: Panel, other: Panel) -> None:
    for name in ("values", "static", "time", "series_start", "series_code"):
        first, second = getattr(one, name), getattr(other, name)
        assert first.dtype == second.dtype
        assert torch.equal(first.nan_to_num(1e9), second.nan_to_num(1e9)), name
    assert torch.equal(one.stretches, other.stretches)
    for name in (
        "schema",
        "series_ids",
        "time_kind",
        "time_zone",
        "dictionaries",
        "source",
        "notes",
        "largest",
        "preparation",
    ):
        assert getattr(one, name) == getattr(other, name), name
    assert one.fingerprint == other.fingerprint == fingerprint(other)


@pytest.mark.parametrize("preparation", [UNEVEN, Preparation(gaps="split")], ids=["duplicates and gaps", "split"])
def test_mapped_kept_and_found_panels_equal_the_one_in_memory(
    write: Write,
    cities: Cities,
    city_schema: Schema,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    preparation: Preparation,
) -> None:
    path = write(uneven(cities) if preparation is UNEVEN else cities(30), row_group_size=7)
    in_memory = read_panel(path, city_schema, preparation)
    monkeypatch.setattr(parquet, "MAPPED_BYTES", 1)
    assert_same(in_memory, read_panel(path, city_schema, preparation))
    kept = read_panel(path, city_schema, preparation, cache=folder)
    assert_same(in_memory, kept)
    monkeypatch.setattr(parquet, "read_keys", lambda *_: pytest.fail("the file was read again"))
    assert_same(in_memory, read_panel(path, city_schema, preparation, cache=folder))
    assert len(list(folder.iterdir())) == 1


def test_small_panels_are_not_kept(write: Write, cities: Cities, city_schema: Schema, folder: Path) -> None:
    read_panel(write(cities(30)), city_schema, cache=folder)
    assert not folder.exists()


@pytest.mark.usefixtures("everything_is_large")
def test_a_changed_file_is_read_again_with_a_note(
    write: Write, cities: Cities, city_schema: Schema, folder: Path
) -> None:
    columns = cities(30)
    path = write(columns)
    read_panel(path, city_schema, cache=folder)
    columns["y"][0] += 1
    stamp = path.stat().st_mtime_ns
    os.utime(write(columns), ns=(stamp + 1, stamp + 1))
    again = read_panel(path, city_schema, cache=folder)
    assert again.notes == (f"{path} has changed since its rows were cached: they were read again.",)
    assert float(again.target[0]) == np.float32(columns["y"][0])
    assert read_panel(path, city_schema, cache=folder).notes == ()


@pytest.mark.usefixtures("everything_is_large")
def test_rows_kept_by_another_version_are_read_again_with_a_note(
    write: Write, cities: Cities, city_schema: Schema, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(cities(30))
    with monkeypatch.context() as before:
        before.setattr(cache, "version", lambda _: "0.0.1")
        read_panel(path, city_schema, cache=folder)
    assert read_panel(path, city_schema, cache=folder).notes == ("rows cached by qat-tft 0.0.1 were read again.",)
    assert read_panel(path, city_schema, cache=folder).notes == ()


@pytest.mark.usefixtures("everything_is_large")
def test_another_schema_or_preparation_is_kept_apart(
    write: Write, cities: Cities, city_schema: Schema, folder: Path
) -> None:
    path = write(cities(30))
    read_panel(path, city_schema, cache=folder)
    plain = Schema(time="time", target="y", id=("city",))
    assert read_panel(path, plain, cache=folder).schema == plain
    assert read_panel(path, city_schema, Preparation(calendar=("hour",)), cache=folder).schema != city_schema
    assert len(list(folder.iterdir())) == 3


def cut_short(place: Path) -> None:
    os.truncate(place / "values.bin", 10)


def flip_a_bit(place: Path) -> None:
    content = bytearray((place / "values.bin").read_bytes())
    content[5] ^= 1
    (place / "values.bin").write_bytes(content)


def lose_a_file(place: Path) -> None:
    (place / "time.bin").unlink()


def lose_the_header(place: Path) -> None:
    (place / HEADER).unlink()


def garble_the_header(place: Path) -> None:
    (place / HEADER).write_text("{")


def change_the_header(place: Path) -> None:
    outer = json.loads((place / HEADER).read_text())
    (place / HEADER).write_text(json.dumps({**outer, "header": outer["header"].replace("cloudy", "sunny")}))


def come_from_the_future(place: Path) -> None:
    from qat_tft.data.reading.cache import _digest

    header = json.loads(json.loads((place / HEADER).read_text())["header"])
    text = json.dumps({**header, "format": 1000})
    (place / HEADER).write_text(json.dumps({"digest": _digest(text), "header": text}))


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize(
    "damage",
    [cut_short, flip_a_bit, lose_a_file, lose_the_header, garble_the_header, change_the_header, come_from_the_future],
    ids=lambda damage: damage.__name__,
)
def test_damaged_rows_are_read_again_with_a_note(
    write: Write, cities: Cities, city_schema: Schema, folder: Path, damage: Callable[[Path], None]
) -> None:
    path = write(cities(30))
    first = read_panel(path, city_schema, cache=folder)
    expected = first.values.clone()
    (place,) = folder.iterdir()
    damage(place)
    again = read_panel(path, city_schema, cache=folder)
    assert "were damaged" in again.notes[0]
    assert torch.equal(again.values, expected)
    assert read_panel(path, city_schema, cache=folder).notes == ()


@pytest.mark.usefixtures("everything_is_large")
def test_a_reading_that_fails_leaves_nothing_behind(
    write: Write, cities: Cities, city_schema: Schema, folder: Path
) -> None:
    columns = cities(30)
    columns["time"][9] = columns["time"][7]
    with pytest.raises(DataError, match="repeats"):
        read_panel(write(columns), city_schema, cache=folder)
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("everything_is_large")
def test_what_a_killed_process_left_is_cleared_away_at_once_and_what_another_is_making_stays(
    write: Write, cities: Cities, city_schema: Schema, folder: Path
) -> None:
    abandoned, made = folder / ".x.0123abcd.tmp", folder / ".y.0123abcd.tmp"
    for left in (abandoned, made):
        left.mkdir(parents=True)
        (left / "values.bin").touch()
    with Hold(made):
        read_panel(write(cities(30)), city_schema, cache=folder)
    assert not abandoned.exists()
    assert (made / "values.bin").exists()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems."""
    monkeypatch.setattr(cache, "turn", lambda path: nullcontext())


@pytest.mark.usefixtures("everything_is_large")
def test_of_two_processes_that_want_the_same_rows_at_once_one_reads_them(
    write: Write, cities: Cities, city_schema: Schema, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read_keys = write(cities(30)), parquet.read_keys
    readings, waiting = [], threading.Event()

    def slowly(*arguments: Any) -> Any:
        readings.append(arguments)
        assert not waiting.wait(0.3), "the other one has found what is not there yet"
        return read_keys(*arguments)

    def wanted() -> Panel:
        panel = read_panel(path, city_schema, cache=folder)
        waiting.set()
        return panel

    monkeypatch.setattr(parquet, "read_keys", slowly)
    with ThreadPoolExecutor(2) as both:
        one, other = (both.submit(wanted) for _ in range(2))
    assert_same(one.result(), other.result())
    assert len(readings) == 1
    assert len(list(folder.iterdir())) == 1, "nothing but the rows is left"


@pytest.mark.usefixtures("everything_is_large", "no_locks")
@pytest.mark.parametrize("kept_before", [False, True], ids=["nothing kept", "something stale kept"])
def test_two_processes_that_keep_the_same_rows_at_once_both_have_them(
    write: Write,
    cities: Cities,
    city_schema: Schema,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept_before: bool,
) -> None:
    path = write(cities(30))
    if kept_before:
        read_panel(path, city_schema, cache=folder)
        os.utime(path, (1000, 1000))
    found, read_keys = [], parquet.read_keys

    def other_one_first(*arguments: Any) -> Any:
        monkeypatch.setattr(parquet, "read_keys", read_keys)
        found.append(read_panel(path, city_schema, cache=folder))
        return read_keys(*arguments)

    monkeypatch.setattr(parquet, "read_keys", other_one_first)
    found.append(read_panel(path, city_schema, cache=folder))
    assert_same(*found)
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(parquet, "read_keys", lambda *_: pytest.fail("the file was read again"))
    assert_same(found[0], dataclasses.replace(read_panel(path, city_schema, cache=folder), notes=found[0].notes))


@pytest.mark.usefixtures("everything_is_large", "no_locks")
def test_a_name_that_another_process_takes_at_the_last_moment_is_left_to_it(
    write: Write, cities: Cities, city_schema: Schema, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = write(cities(30)), cache._opened
    looks: list[Path] = []

    def other_one_at_the_last_moment(place: Path, key: cache.Key, state: cache.FileStates) -> Any:
        looks.append(place)
        if len(looks) == 3:  # just before it gives its own folder the name
            monkeypatch.setattr(cache, "_opened", opened)
            read_panel(path, city_schema, cache=folder)
            return None, ""
        return opened(place, key, state)

    monkeypatch.setattr(cache, "_set_aside", lambda place: None)
    monkeypatch.setattr(cache, "_opened", other_one_at_the_last_moment)
    assert_same(read_panel(path, city_schema, cache=folder), read_panel(path, city_schema, cache=folder))
    assert len(list(folder.iterdir())) == 1


@pytest.mark.usefixtures("everything_is_large")
def test_rows_that_change_while_they_are_read_are_refused(
    write: Write, cities: Cities, city_schema: Schema, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read_keys = write(cities(30)), parquet.read_keys

    def changed(*arguments: Any) -> Any:
        os.utime(path, (1000, 1000))
        return read_keys(*arguments)

    monkeypatch.setattr(parquet, "read_keys", changed)
    with pytest.raises(DataError, match="changed while they were read"):
        read_panel(path, city_schema, cache=folder)


@pytest.mark.usefixtures("everything_is_large")
def test_rows_are_read_all_the_same_where_they_cannot_be_kept_and_a_note_says_so(
    write: Write, cities: Cities, city_schema: Schema, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    path = write(cities(30))
    panel = read_panel(path, city_schema, cache=tmp_path / "file" / "cache")
    assert panel.notes[0].startswith("rows are not cached")
    assert_same(replace(panel, notes=panel.notes[1:]), read_panel(path, city_schema))


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o755), (0o077, 0o700)], ids=["shared", "private"])
def test_a_kept_panel_may_be_read_by_whom_the_umask_lets(
    write: Write, cities: Cities, city_schema: Schema, folder: Path, mask: int, mode: int
) -> None:
    path = write(cities(30))
    before = os.umask(mask)
    try:
        read_panel(path, city_schema, cache=folder)
    finally:
        os.umask(before)
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o777 == mode
    assert {file.stat().st_mode & 0o777 for file in kept.iterdir()} == {mode & 0o666}


@pytest.mark.usefixtures("everything_is_large")
def test_a_disk_without_room_is_an_error_and_no_crash(
    write: Write, cities: Cities, city_schema: Schema, folder: Path, full_disk: FullDisk
) -> None:
    path = write(cities(30))
    with full_disk(100), pytest.raises(DataError, match="cannot store"):
        read_panel(path, city_schema, cache=folder)
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("everything_is_large")
def test_windows_of_a_found_panel_come_through_worker_processes_alike(
    write: Write, cities: Cities, city_schema: Schema, folder: Path
) -> None:
    path = write(cities(30))
    in_process = windows_of(read_panel(path, city_schema, cache=folder))
    found = windows_of(read_panel(path, city_schema, cache=folder))
    one = batches(in_process, 8, shuffle=True, seed=3)
    two = batches(found, 8, shuffle=True, seed=3, workers=2)
    for expected, batch in zip(one, two, strict=True):
        assert all(torch.equal(first, second) for first, second in zip(expected[:5], batch[:5], strict=True))


def windows_of(panel: Panel) -> Windows:
    split = Split(int(panel.time.max()), int(panel.time.max()))
    return Windows(Preprocessing.fit(panel, split).encode(panel), history=5, horizon=2)


def test_reading_tells_how_far_it_has_come(write: Write, cities: Cities, city_schema: Schema) -> None:
    told: list[tuple[int, int]] = []
    read_panel(write(cities(30), row_group_size=20), city_schema, progress=lambda *reached: told.append(reached))
    assert told[-1] == (120, 120)
    assert told == sorted(told)
