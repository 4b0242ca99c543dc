"""A page that cannot be made or written is a note, unless it was asked for."""

from pathlib import Path

import pytest

from qat_tft.cli.display.pages import written_page
from qat_tft.errors import RunFolderError


def broken() -> str:
    raise RunFolderError("cannot read: no such file", where="fp32.safetensors")


def test_a_page_is_written_where_it_belongs_or_where_it_was_asked_for(tmp_path: Path) -> None:
    usual, asked = tmp_path / "report.html", tmp_path / "other.html"
    assert written_page(lambda: "one", None, usual) == usual
    assert written_page(lambda: "two", asked, usual) == asked
    assert (usual.read_text(), asked.read_text()) == ("one", "two")


def test_a_page_that_cannot_be_made_is_a_note_without_another_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written_page(broken, None, tmp_path / "report.html") is None
    said = capsys.readouterr().err
    assert "No page is written: fp32.safetensors: cannot read" in said
    assert "--out" not in said
    with pytest.raises(RunFolderError):
        written_page(broken, tmp_path / "asked.html", tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_a_note_with_the_way_to_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written_page(lambda: "one", None, tmp_path / "nowhere" / "report.html") is None
    assert "--out FILE writes it elsewhere." in capsys.readouterr().err
