"""Commands take URLs where they take paths: the same forecasts, and one message where there is nothing to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from qat_tft.cli.app import main
from qat_tft.runs.folder import RunFolder

SPLIT = 100  # rows that are measured; the others are planned


@pytest.fixture
def objects(store: Any, exported_run: RunFolder, tmp_path: Path) -> Path:
    """Measured and planned rows as files, and the same as objects of bucket `data`."""
    table = pq.read_table(exported_run.path / "data.parquet")
    start = pc.sort_indices(table["time"])[2 * SPLIT].as_py()
    measured = pc.less(table["time"], table["time"][start])
    for name, rows in {"measured": measured, "planned": pc.invert(measured)}.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        pq.write_table(table.filter(rows), tmp_path / "data" / name / "part.parquet")
    store.put_folder("data", tmp_path / "data")
    return tmp_path / "data"


def test_predict_reads_its_data_and_its_future_rows_from_a_store(
    objects: Path, exported_run: RunFolder, tmp_path: Path
) -> None:
    found = []
    for place in (str(objects), "s3://data"):
        out = tmp_path / "out.parquet"
        words = ["predict", str(exported_run.onnx_file("fp32")), "--parquet-file", f"{place}/measured"]
        assert main([*words, "--future-file", f"{place}/planned/part.parquet", "--out", str(out)]) == 0
        found.append(pq.read_table(out))
    assert found[0].num_rows > 0
    assert found[0].equals(found[1])


def test_backtest_and_inspect_read_from_a_store(
    objects: Path, exported_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for place in (str(objects), "s3://data"):
        words = ["backtest", str(exported_run.path), "--parquet-file", f"{place}/measured"]
        assert main([*words, "--json"]) == 0
        assert main(["inspect", f"{place}/measured", "--json"]) == 0
        printed.append(capsys.readouterr().out.replace(place, ""))
    assert printed[0] == printed[1]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://none/x.parquet", "s3://none/x.parquet: there is no bucket 'none'."),
        ("s3://data/none", "s3://data/none: there is no such object"),
        ("s3://me:hidden@data/x", "s3://data/x: the URL holds a user name or password."),
        ("ftp://data/x", "there is no way to read ftp:// URLs"),
    ],
)
@pytest.mark.usefixtures("objects")
def test_every_command_says_what_it_cannot_read(
    refusal: Callable[..., str], exported_run: RunFolder, tmp_path: Path, url: str, said: str
) -> None:
    model, runs = exported_run.onnx_file("fp32"), tmp_path / "runs"
    for words in (
        ["predict", model, "--parquet-file", url],
        ["predict", model, "--parquet-file", "s3://data/measured", "--future-file", url],
        ["backtest", exported_run.path, "--parquet-file", url],
        ["inspect", url],
        ["train", "--parquet-file", url, "--time", "time", "--target", "load", "--runs-dir", runs],
    ):
        message = refusal(*words)
        assert said in message
        assert "hidden" not in message
    assert not list(runs.glob("*"))
