"""Rows in object stores and on web servers are those of the same files here, and no more is fetched than they need."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.config.run import RunConfig
from qat_tft.data.panel import Panel
from qat_tft.data.reading import parquet
from qat_tft.data.reading.files import http_file
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.reading.source import open_source
from qat_tft.errors import ConfigError, DataError
from qat_tft.schema import Columns, Schema

Cities = Callable[..., dict[str, Any]]
PLAIN = Schema(time="time", target="y")
WIDE = Schema(time="time", target="y", observed=Columns(real=("a", "b")))
ROWS, UNUSED = 60_000, 12
FOOTER = 2**16  # bytes that Arrow reads from the end of a file at first


def as_parquet(columns: dict[str, Any], **options: Any) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content, **options)
    return content.getvalue()


def wide(rows: int = ROWS, seed: int = 0, **options: Any) -> bytes:
    """The columns of WIDE, in three row groups, and many that nobody asked for."""
    random = np.random.default_rng(seed)
    names = ("y", "a", "b", *(f"unused{number}" for number in range(UNUSED)))
    columns = {"time": np.arange(rows), **{name: random.normal(size=rows) for name in names}}
    return as_parquet(columns, row_group_size=rows // 3, compression="none", use_dictionary=False, **options)


def same(one: Panel, other: Panel) -> bool:
    return torch.equal(one.values, other.values) and one.fingerprint == other.fingerprint


def message(path: Any, schema: Schema = PLAIN, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_panel(path, schema, **options)
    return str(caught.value)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_file, "_FIRST_PAUSE", 0.0)


@pytest.fixture
def url(store: Any) -> Callable[[str, str], str]:
    """The URL of an object in bucket `data` in one of the three ways of reading it."""

    def written(scheme: str, key: str) -> str:
        return f"{store.address}/data/{key}" if scheme == "http" else f"{scheme}://data/{key}"

    return written


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_an_object_is_read_as_the_file_that_it_is_and_only_the_ranges_of_its_columns(
    store: Any, url: Callable[[str, str], str], tmp_path: Path, scheme: str
) -> None:
    content = wide()
    (tmp_path / "rows.parquet").write_bytes(content)
    store.put("data", "deep/rows.parquet", content)
    assert same(read_panel(url(scheme, "deep/rows.parquet"), WIDE), read_panel(tmp_path / "rows.parquet", WIDE))
    needed = 4 * 8 * ROWS  # time, y, a, b, without compression
    assert needed <= store.bytes_sent <= 1.01 * needed + FOOTER
    assert store.bytes_sent < 0.3 * len(content)


def test_a_column_chunk_that_is_too_large_to_wait_for_is_fetched_in_parts(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("data", "rows.parquet", wide(data_page_size=2**12))
    whole = read_panel("s3://data/rows.parquet", WIDE)
    requests = len(store.answered)
    monkeypatch.setattr("qat_tft.data.reading.source._FETCHED", 1)
    monkeypatch.setattr("qat_tft.data.reading.source._BUFFER", 2**14)
    assert same(read_panel("s3://data/rows.parquet", WIDE), whole)
    assert len(store.answered) - requests > 3 * requests


def test_a_folder_of_objects_is_listed_with_its_partitions_and_without_what_is_hidden(
    store: Any, cities: Cities, city_schema: Schema, tmp_path: Path
) -> None:
    names = ("year=2/b.parquet", "year=1/a.PQ", "_old/c.parquet", "year=1/.d.parquet", "year=1/notes.txt")
    for place, name in enumerate(names):
        columns = {one: values[place * 30 : place * 30 + 30] for one, values in cities(90).items()}
        (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rows" / name).write_bytes(as_parquet(columns))
    store.put_folder("data", tmp_path)
    store.put("data", "rows2/e.parquet", b"")
    found, expected = open_source("s3://data/rows"), open_source(tmp_path / "rows")
    assert [str(path) for path in found.paths] == ["s3://data/rows/year=1/a.PQ", "s3://data/rows/year=2/b.parquet"]
    assert found.partitions == expected.partitions == ({"year": "1"}, {"year": "2"})
    schema = city_schema.model_copy(update={"known": Columns(real=("hour_sin", "year"), category=("hour",))})
    assert same(read_panel("s3://data/rows/", schema), read_panel(tmp_path / "rows", schema))
    assert open_source(["s3://data/rows/year=2/b.parquet"]).partitions == ({"year": "2"},)


def test_objects_and_local_files_go_together(store: Any, tmp_path: Path) -> None:
    one, other = (as_parquet({"time": range(at, at + 9), "y": np.arange(9.0) + at}) for at in (0, 9))
    (tmp_path / "one.parquet").write_bytes(one)
    (tmp_path / "other.parquet").write_bytes(other)
    store.put("data", "other.parquet", other)
    mixed = read_panel([tmp_path / "one.parquet", "s3://data/other.parquet"], PLAIN)
    assert same(mixed, read_panel(tmp_path, PLAIN))


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_rows_that_are_kept_are_found_again_without_reading_anything(
    store: Any, url: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr(parquet, "MAPPED_BYTES", 1)
    store.put("data", "rows.parquet", wide(3000))
    first = read_panel(url(scheme, "rows.parquet"), WIDE, cache=tmp_path)
    store.answered.clear()
    second = read_panel(url(scheme, "rows.parquet"), WIDE, cache=tmp_path)
    assert same(first, second)
    assert second.notes == ()
    assert {one.kind for one in store.answered} <= {"HEAD", "LIST"}
    assert len(store.answered) <= 2
    store.put("data", "rows.parquet", wide(3000, seed=1))  # as long as before
    assert (
        "has changed since its rows were cached"
        in read_panel(url(scheme, "rows.parquet"), WIDE, cache=tmp_path).notes[0]
    )


@pytest.mark.parametrize(
    "fault",
    [{"status": 503}, {"status": 500}, {}, {"orderly": True}],
    ids=["too many requests", "error", "connection reset in a body", "connection closed in a body"],
)
@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.usefixtures("no_pauses")
def test_what_passes_is_tried_again(
    store: Any, object_server: Any, url: Callable[[str, str], str], scheme: str, fault: dict[str, Any]
) -> None:
    store.put("data", "rows.parquet", wide(3000))
    expected = read_panel(url(scheme, "rows.parquet"), WIDE)
    store.faults = [object_server.Fault("GET", 2, **fault)]
    assert same(read_panel(url(scheme, "rows.parquet"), WIDE), expected)
    assert store.faults[0].times == 0


@pytest.mark.usefixtures("no_pauses")
def test_what_does_not_pass_is_tried_a_few_times(store: Any, object_server: Any) -> None:
    store.put("data", "rows.parquet", wide(3000))
    store.faults = [object_server.Fault("HEAD", 99, 503)]
    url = f"{store.address}/data/rows.parquet"
    assert message(url, WIDE).startswith(f"{url}: the object cannot be read: the server answers 503. Try again;")
    assert store.count("HEAD") == http_file.ATTEMPTS


def test_a_store_that_keeps_failing_is_given_up(
    store: Any, object_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qat_tft.data.reading.files.object_store.ATTEMPTS", 2)
    store.put("data", "rows.parquet", wide(3000))
    store.faults = [object_server.Fault("HEAD", 99, 503)]
    assert "s3://data/rows.parquet: the object cannot be read: the server answers 503" in message(
        "s3://data/rows.parquet", WIDE
    )
    assert store.count("HEAD") == 2


@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize("rows", [3000, 1500], ids=["by one of the same size", "by a smaller one"])
def test_an_object_that_is_replaced_while_it_is_read_is_refused(
    store: Any, url: Callable[[str, str], str], scheme: str, rows: int
) -> None:
    store.put("data", "rows.parquet", wide(3000))

    def replace_after_the_footer(kind: str, where: str) -> None:
        if kind == "GET" and store.count("GET") == 2:
            store.put("data", "rows.parquet", wide(rows, seed=1))

    store.before = replace_after_the_footer
    assert message(url(scheme, "rows.parquet"), WIDE).startswith(
        f"{url(scheme, 'rows.parquet')}: the object changed while it was read. Read it again"
    )


def test_what_is_not_there_or_not_allowed_is_said(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("data", "rows.parquet", wide(30))
    store.buckets |= {"closed": {}, "far": {}, "private": {}}
    store.forbidden.add("closed")
    store.elsewhere.add("far")
    store.signed.add("private")
    web = f"{store.address}/data/none.parquet"
    assert message("s3://none/x.parquet").startswith("s3://none/x.parquet: there is no bucket 'none'. Check bucket")
    assert message("s3://data/x.parquet").startswith("s3://data/x.parquet: there is no such object, and none below it.")
    assert message(web).startswith(f"{web}: there is no such object. Check")
    assert message("s3://closed/x.parquet").startswith("s3://closed/x.parquet: access is denied, or there are no cre")
    assert message(f"{store.address}/closed/x").startswith(f"{store.address}/closed/x: access is denied")
    assert message("s3://far/x") == "s3://far/x: the bucket is in region eu-west-9. Set AWS_REGION=eu-west-9."
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert message("s3://private/x").startswith(
        "s3://private/x: access is denied, or there are no credentials. Set AWS"
    )
    assert read_panel("s3://data/rows.parquet", WIDE).values.shape[0] == 30  # a public one needs none
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:very-secret@127.0.0.1:1")
    refused = message("s3://data/rows.parquet")
    assert refused.startswith("http://127.0.0.1:1: the URL holds a user name or password.")
    assert "very-secret" not in refused
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:1")
    assert message("s3://data/rows.parquet").startswith("AWS_ENDPOINT_URL is '127.0.0.1:1'. Allowed: a URL")


def test_objects_of_google_are_read_and_kept_like_files(
    object_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAPPED_BYTES", 1)
    (tmp_path / "data" / "rows").mkdir(parents=True)
    (tmp_path / "data" / "rows" / "part.parquet").write_bytes(wide())
    # In a process of its own: Arrow holds Python's lock while it waits for Google's client to open a file.
    command = [sys.executable, object_server.__file__, tmp_path / "data"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.stdout.readline().strip())
        panels = [read_panel("gs://data/rows", WIDE, cache=tmp_path / "cache") for _ in range(2)]
        server.communicate()
    assert all(same(panel, read_panel(tmp_path / "data", WIDE)) for panel in panels)
    assert panels[1].notes == ()


def test_a_store_of_google_is_listed_and_its_refusals_are_said(store: Any) -> None:
    store.buckets["closed"] = {}
    store.forbidden.add("closed")
    store.put("data", "rows/notes.txt", b"none")
    assert message("gs://closed/x").startswith("gs://closed/x: access is denied, or there are no credentials. Set GOOG")
    assert message("gs://data/none").startswith("gs://data/none: there is no such object, and none below it.")
    assert message("gs://data/rows").startswith("gs://data/rows: the folder holds no .parquet file.")


def test_a_server_that_sends_whole_files_is_refused(store: Any) -> None:
    store.put("data", "rows.parquet", wide(3000))
    store.ranges = False
    assert "the server gives no parts of files (ranges). Download the file" in message(
        f"{store.address}/data/rows.parquet"
    )


@pytest.mark.parametrize(
    ("url", "what", "where"),
    [
        ("s3://me:hidden@b/x", "the URL holds a user name or password", "s3://b/x"),
        ("https://hidden@b/x?a=1", "the URL holds a user name or password", "https://b/x"),
        ("https://b/x?a=1&X-Amz-Signature=hidden", "a secret (X-Amz-Signature)", "https://b/x"),
        ("https://b?sig=hidden", "a secret (sig)", "https://b"),
        ("s3://b/x?secret_key=hidden", "the URL has parameters (secret_key)", "s3://b/x"),
    ],
)
def test_a_url_that_holds_a_secret_is_refused_without_repeating_it(url: str, what: str, where: str) -> None:
    text = message(url)
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_toml(f"[data]\nparquet_files = ['{url}']\n")
    assert text.startswith(f"{where}: ")
    assert what in text
    assert text.rstrip(".") in str(caught.value)
    assert "hidden" not in text + str(caught.value)


@pytest.mark.parametrize("url", ["ftp://b/x", "s3://", "s3:///x", "http://[b/x"])
def test_a_url_that_nothing_can_read_is_refused(url: str) -> None:
    assert "Allowed: a path, s3://BUCKET/KEY, gs://BUCKET/KEY, http:// or https://" in message(url)


def test_the_credentials_are_in_no_message_and_in_nothing_that_is_kept(
    store: Any, object_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAPPED_BYTES", 1)
    store.put("data", "rows.parquet", wide(3000))
    panel = read_panel("s3://data/rows.parquet", WIDE, cache=tmp_path)
    store.faults = [object_server.Fault("GET", 1, 403, "InvalidAccessKeyId")]
    texts = [repr(panel), message("s3://data/rows.parquet", PLAIN)]
    texts += [path.read_bytes().decode("latin1") for path in tmp_path.rglob("*") if path.is_file()]
    assert "the credentials are not valid" in texts[1]
    assert not any(secret in text for text in texts for secret in ("AKIDTEST", "not-to-be-shown"))
