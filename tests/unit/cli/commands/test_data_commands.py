"""`inspect` and `sample-data` from the command line: one JSON object, exit codes, nothing written on failure."""

import json
from pathlib import Path

import pytest

from qat_tft.cli.app import main
from qat_tft.schema import Schema


def test_sample_data_is_written_inspected_and_its_schema_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, schema = str(tmp_path / "bars.parquet"), str(tmp_path / "proposed.toml")
    assert main(["sample-data", "--rows", "400", "--out", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["simulated"] is True
    assert main(["inspect", data, "--write-schema", schema, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rows"] == 400
    assert Schema.read(schema).model_dump(mode="json") == shown["schema"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["inspect", "missing.parquet"], "there is no such file", id="missing file"),
        pytest.param(["sample-data", "--preset", "gold", "--out", "x.parquet"], "no preset 'gold'", id="preset"),
        pytest.param(["sample-data", "--rows", "1", "--out", "x.parquet"], "too few", id="rows"),
        pytest.param(["sample-data", "--out", "missing/x.parquet"], "cannot be written", id="folder"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--json"]) == 2
    shown = capsys.readouterr()
    assert message in " ".join(shown.err.split())
    assert message in json.loads(shown.out)["error"]
    assert list(tmp_path.iterdir()) == []
