"""The notebook of examples/ runs from its first cell to its last, but for those that say they take minutes."""

import ast
import json
from pathlib import Path
from types import CodeType

import matplotlib
import matplotlib.pyplot as plt
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "tutorial.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def compiled(cell: dict) -> CodeType:
    return compile("".join(cell["source"]), f"{NOTEBOOK.name}, {cell['id']}", "exec")


def test_it_is_kept_without_outputs_and_in_plain_python() -> None:
    assert len(CODE) > 5
    assert [cell["id"] for cell in CODE if cell["outputs"] or cell["execution_count"]] == []
    assert all(ast.parse("".join(cell["source"])) for cell in CODE)


def test_its_cells_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kernel, which takes 90 MB of packages: a cell is a program, and what it ends with is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    matplotlib.use("Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in CODE:
        if "minutes" not in cell["metadata"].get("tags", ()):
            exec(compiled(cell), names)
    assert len(plt.get_fignums()) == 2
    plt.close("all")
    assert set(names["scores"]) == {"fp32", "qat", "seasonal_naive", "last_value"}  # type: ignore[call-overload]
    assert set(names["shares"]["variable"].to_pylist()) >= {"temp_c", "hour", "working_day"}  # type: ignore[index]


def test_what_takes_minutes_is_the_export_alone() -> None:
    """Exporting, predicting and checking by a `Forecaster` are tested where they can share a run."""
    left_out = [cell for cell in CODE if "minutes" in cell["metadata"].get("tags", ())]
    assert [cell["id"] for cell in left_out] == [CODE[-1]["id"]]
    assert "forecaster.predict(rentals)" in left_out[0]["source"][0]
