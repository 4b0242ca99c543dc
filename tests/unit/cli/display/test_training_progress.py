"""A bar moves while a large file is read, is gone when that is done, and is silent without a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from qat_tft.cli import console
from qat_tft.cli.display.training_progress import TrainingDisplay
from qat_tft.training.progress import PhaseStart

ROWS = 8_000_000


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, rows: int) -> str:
    text = StringIO()
    monkeypatch.setattr(console, "_messages", Console(file=text, force_terminal=terminal, width=100))
    with TrainingDisplay() as display:
        for done in range(0, rows + 1, rows // 8):
            display.reading(done, rows)
        display.phase(PhaseStart("fp32", epochs=1, steps=10, done=0))
    return text.getvalue()


def test_reading_a_large_file_moves_a_bar_and_leaves_the_place_to_training(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, rows=ROWS)
    assert "Reading" in text
    assert f"/{ROWS}" in text
    assert text.rindex("FP32") > text.rindex("Reading")


@pytest.mark.parametrize(("terminal", "rows"), [(False, ROWS), (True, 1000)], ids=["no terminal", "small file"])
def test_nothing_is_shown_without_a_terminal_or_for_a_small_file(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, rows: int
) -> None:
    assert "Reading" not in shown(monkeypatch, terminal=terminal, rows=rows)
