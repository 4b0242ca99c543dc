"""The files in examples/ are what they claim to be: schemas that can be read, scripts that can be run."""

import ast
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from qat_tft.data.sample.samples import embedded_rentals
from qat_tft.schema import Schema

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = sorted((ROOT / "examples").glob("*.toml"))
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PAGE = ROOT / "docs" / "examples.md"


def test_there_are_schemas_and_scripts_to_look_at() -> None:
    assert SCHEMAS
    assert SCRIPTS


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_schema_is_read_and_survives_being_written(path: Path) -> None:
    schema = Schema.from_toml(path.read_text(encoding="utf-8"), where=str(path))
    assert Schema.from_toml(schema.to_toml(), where="written") == schema
    assert schema.group("historical").real[0] == schema.target
    assert schema.group("historical").size > 1, "the target alone makes no example"


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_schema_names_source_and_licence_and_its_place_in_the_documentation(path: Path) -> None:
    comments = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    assert "Source:" in comments
    assert any(word in comments.casefold() for word in ("licence", "free to use"))
    page = PAGE.read_text(encoding="utf-8")
    assert f"examples/{path.name}" in page
    assert f"{path.stem}.parquet" in page


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_it_does_and_without_arguments_runs_or_says_how_it_is_called(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout if done.returncode == 0 else path.name in done.stderr


def test_the_script_of_the_embedded_rentals_leaves_columns_out_and_changes_nothing_else(tmp_path: Path) -> None:
    embedded = pq.read_table(embedded_rentals()[0])
    whole = embedded.append_column("casual", pc.divide(embedded["cnt"], 3))
    whole = whole.append_column("registered", pc.subtract(whole["cnt"], whole["casual"]))
    assert "164 rows" in _rebuild(whole.slice(0, 164), tmp_path).stdout
    rebuilt = pq.read_table(tmp_path / embedded_rentals()[0].name)
    assert rebuilt.equals(embedded.slice(0, 164), check_metadata=True)


def test_the_script_of_the_embedded_rentals_refuses_what_its_notice_would_not_cover(tmp_path: Path) -> None:
    rows = pq.read_table(embedded_rentals()[0]).slice(0, 9)
    nobody = pa.array([0] * 9, pa.int16())
    parts = rows.append_column("casual", nobody).append_column("registered", rows["cnt"])
    assert (
        "do not add up"
        in _rebuild(rows.append_column("casual", nobody).append_column("registered", nobody), tmp_path).stderr
    )
    assert "not sorted" in _rebuild(parts.take([1, 0, *range(2, 9)]), tmp_path).stderr
    assert not (tmp_path / embedded_rentals()[0].name).exists()


def _rebuild(whole: pa.Table, folder: Path) -> subprocess.CompletedProcess[str]:
    source = folder / "whole.parquet"
    pq.write_table(whole, source)
    script = ROOT / "examples" / "make_embedded_rentals.py"
    return subprocess.run([sys.executable, script, source, folder], capture_output=True, text=True, check=False)


def test_the_documentation_shows_the_ten_lines_as_they_are() -> None:
    script = (ROOT / "examples" / "ten_lines.py").read_text(encoding="utf-8")
    _, code = script.split('"""\n\n', maxsplit=1)
    assert f"```python\n{code}```" in (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")
    assert len([line for line in code.splitlines() if line]) == 10
