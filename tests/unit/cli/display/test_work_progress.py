"""A bar says what is done and how long it takes, on a terminal alone; times are words."""

from __future__ import annotations

import re
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from qat_tft.cli import console
from qat_tft.cli.display.times import Elapsed, TimeLeft
from qat_tft.cli.display.work_progress import LARGE, WorkDisplay

STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What a terminal shows."""
    stream = StringIO()
    monkeypatch.setattr(console, "_messages", Console(file=stream, force_terminal=True, width=100))
    return stream


def plain(text: StringIO) -> str:
    return STYLES.sub("", text.getvalue())


def test_stages_are_shown_by_name_and_number_and_the_bar_is_gone_at_the_end(text: StringIO) -> None:
    with WorkDisplay(json=False) as shown:
        shown.stage("tracing model.fp32.onnx", 0, 3)
        shown._bar.refresh()  # type: ignore[union-attr]
        shown.stage("writing", 2, 3)
        shown._bar.refresh()  # type: ignore[union-attr]
    assert re.search(r"tracing model\.fp32\.onnx .* 0/3", plain(text))
    assert re.search(r"writing .* 2/3", plain(text))
    assert text.getvalue().endswith("\x1b[2K"), "the line is cleared"


def test_a_time_is_guessed_for_parts_and_not_for_stages(text: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qat_tft.cli.display.times._BEGINNING", 0.0)
    with WorkDisplay(json=False) as shown:
        for unit in shown.stage, shown.part:
            unit("working", 0, 3)
            unit("working", 1, 3)
            shown._bar.refresh()  # type: ignore[union-attr]
            assert ("about 1 second left" in plain(text)) == (unit == shown.part)


def test_batches_pass_through_and_are_counted(text: StringIO) -> None:
    with WorkDisplay(json=False) as shown:
        for batch in shown.batches("abc", 3):
            shown._bar.refresh()  # type: ignore[union-attr]
            assert batch in "abc"
    assert re.search(r"batches of origins .* 2/3", plain(text))


@pytest.mark.parametrize(("rows", "seen"), [(LARGE, True), (LARGE - 1, False)], ids=["large", "small"])
def test_reading_shows_for_large_files(text: StringIO, rows: int, seen: bool) -> None:
    with WorkDisplay(json=False) as shown:
        shown.reading(rows // 2, rows)
    assert ("reading rows" in plain(text)) == seen


@pytest.mark.parametrize(("terminal", "json"), [(False, False), (True, True)], ids=["no terminal", "json"])
def test_it_is_silent_without_a_terminal_and_beside_json(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, json: bool
) -> None:
    stream = StringIO()
    monkeypatch.setattr(console, "_messages", Console(file=stream, force_terminal=terminal, width=100))
    with WorkDisplay(json=json) as shown:
        shown.stage("writing", 2, 3)
        shown.reading(LARGE, LARGE)
        assert list(shown.batches("abc", 3)) == ["a", "b", "c"]
    assert stream.getvalue() == ""


def task(*, elapsed: float | None, completed: int, total: int | None = 100, **fields: object) -> SimpleNamespace:
    return SimpleNamespace(elapsed=elapsed, completed=completed, total=total, fields=fields)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        pytest.param(task(elapsed=60, completed=25), "about 3 minutes left", id="mean pace"),
        pytest.param(task(elapsed=60, completed=75, begun=50), "about 1 minute left", id="resumed"),
        pytest.param(task(elapsed=90, at=60, completed=25), "about 2 minutes left", id="since the last part"),
        pytest.param(task(elapsed=900, at=60, completed=25), "about 1 second left", id="a part that takes longer"),
        pytest.param(task(elapsed=60, completed=25, equal=False), "", id="parts that differ"),
        pytest.param(task(elapsed=60, completed=0), "", id="nothing done"),
        pytest.param(task(elapsed=1, completed=25), "", id="too early"),
        pytest.param(task(elapsed=60, completed=100), "", id="done"),
        pytest.param(task(elapsed=60, completed=5, total=None), "", id="no end known"),
    ],
)
def test_the_time_left_is_said_in_words(given: SimpleNamespace, left: str) -> None:
    assert TimeLeft().render(given).plain == left  # type: ignore[arg-type]


def test_the_time_taken_is_said_in_words() -> None:
    assert Elapsed().render(task(elapsed=130, completed=1)).plain == "2 min 10 s"  # type: ignore[arg-type]
    assert Elapsed().render(task(elapsed=None, completed=0)).plain == "0.0 s"  # type: ignore[arg-type]
