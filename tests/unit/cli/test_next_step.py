"""On a terminal a command ends with what people do next: one line on standard error that can be typed as it stands."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from qat_tft.cli import console
from qat_tft.cli.app import COMMANDS, main
from qat_tft.cli.commands.report import _after
from qat_tft.cli.next_step import command, say_next
from qat_tft.cli.train_run import Trained
from qat_tft.runs import layout
from qat_tft.runs.report import RunReport
from qat_tft.runs.results import RunResults

RESULTS = RunResults("a", (0.5,), 24, {"fp32": (0.1,)})
QUOTED = re.compile("`qat-tft ([a-z-]+)[^`]*`")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What a terminal shows of standard error."""
    stream = StringIO()
    shown = Console(file=stream, force_terminal=True, width=1000, soft_wrap=True, highlight=False, color_system=None)
    monkeypatch.setattr(console, "_messages", shown)
    return stream


def test_the_line_is_for_a_terminal_and_not_beside_json(said: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    say_next("look", json=True)
    assert said.getvalue() == ""
    say_next("look", json=False)
    assert said.getvalue() == "Next: look\n"
    stream = StringIO()
    monkeypatch.setattr(console, "_messages", Console(file=stream, force_terminal=False))
    say_next("look", json=False)
    assert stream.getvalue() == ""


def test_a_command_names_what_is_not_usual_and_quotes_what_needs_it() -> None:
    assert command("report", "--open") == "`qat-tft report --open`"
    assert command("export", "--int8", run="mine", runs_dir="my runs") == (
        "`qat-tft export mine --int8 --runs-dir 'my runs'`"
    )


@pytest.mark.parametrize(
    ("words", "following"),
    [
        pytest.param(["sample-data", "--rows", "400", "--out", "bars.parquet"], "train", id="sample-data"),
        pytest.param(["inspect", "bars.parquet"], "inspect", id="inspect"),
        pytest.param(["inspect", "bars.parquet", "--write-schema", "bars.toml"], "train", id="inspect with a schema"),
        pytest.param(["runs"], "train", id="runs"),
    ],
)
def test_a_command_ends_with_the_next_one(
    said: StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], following: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[0] == "inspect":
        assert main(["sample-data", "--rows", "400", "--out", "bars.parquet", "--json"]) == 0
    assert main(words) == 0
    last = said.getvalue().splitlines()[-1].split("\x1b[2K")[-1]
    assert last.startswith("Next: ")
    assert QUOTED.findall(last) == [following]


@pytest.mark.parametrize(
    ("exported", "quantized", "following"),
    [(True, True, ["check"]), (False, True, ["report", "export"]), (False, False, ["report", "quantize"])],
    ids=["exported", "quantization-aware", "FP32"],
)
def test_training_is_followed_by_what_the_run_lacks(exported: bool, quantized: bool, following: list[str]) -> None:
    run = SimpleNamespace(folder=SimpleNamespace(has_qat_weights=quantized))
    text = Trained(run, object() if exported else None).next_step("runs")  # type: ignore[arg-type]
    assert QUOTED.findall(text) == following
    assert set(following) <= set(COMMANDS)


def test_a_report_is_followed_by_what_the_run_lacks_and_then_by_its_use() -> None:
    weights = {layout.WEIGHTS["fp32"]: 1, layout.WEIGHTS["qat"]: 1}
    files = {layout.ONNX["fp32"]: 1, layout.ONNX["int8"]: 1}
    bare = RunReport(Path("runs/a"), RESULTS, weights, None, None, None)
    exported = replace(bare, sizes={**weights, **files})
    checked = replace(exported, check={"passed": True})
    said = [_after(one, None, "runs", opened=opened) for one in (bare, exported, checked) for opened in (False, True)]
    assert [QUOTED.findall(text) for text in said] == [
        ["export"],
        ["export"],
        ["check"],
        ["check"],
        ["report"],
        ["predict"],
    ]
    assert "runs/a/model.int8.onnx" in said[-1]
