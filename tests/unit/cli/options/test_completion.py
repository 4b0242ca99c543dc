"""The shell offers runs, choices and options, and asks without loading anything large."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qat_tft.cli.app import main

SHELLS = ["bash", "zsh", "fish"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two finished runs, an unfinished one, and what else stands beside them."""
    for name in ("first", "fast", "fresh.unfinished"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    (tmp_path / "runs" / "trackers").mkdir()
    (tmp_path / "runs" / "latest").write_text("fast\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What bash offers for the last word."""
    monkeypatch.setenv("_QAT_TFT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("qat-tft", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert main([]) == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(("export", "f"), ["fast", "first"], id="finished runs"),
        pytest.param(("export", "fi"), ["first"], id="those that begin so"),
        pytest.param(("check", "--run", "fa"), ["fast"], id="run of an option"),
        pytest.param(("report", "--compare", "first", "f"), ["fast", "first"], id="second of two runs"),
        pytest.param(("train", "--resume", "f"), ["fresh"], id="a run to resume"),
        pytest.param(("export", "--runs-dir", "nowhere", "f"), [], id="another folder"),
        pytest.param(("export", "runs/f"), [], id="a path is the shell's own affair"),
        pytest.param(("train", "--duplicates", ""), ["error", "last", "mean"], id="choices"),
        pytest.param(("predict", "mod"), [], id="files are the shell's own affair"),
        pytest.param(("ex",), ["export", "explain"], id="commands"),
    ],
)
def test_the_shell_is_offered(runs, monkeypatch, capsys, words, found):
    assert offered(monkeypatch, capsys, *words) == found


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_can_be_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)  # else that which runs the tests
    assert main(["--show-completion"]) == 0
    assert f"_QAT_TFT_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_completion_loads_no_large_library(runs: Path) -> None:
    program = (
        "import os, sys; from qat_tft.cli.app import main; main([]);"
        "sys.exit(bool(sys.modules.keys() & {'torch', 'numpy', 'pyarrow', 'onnx', 'onnxruntime'}))"
    )
    asked = {"_QAT_TFT_COMPLETE": "complete_bash", "COMP_WORDS": "qat-tft report fi", "COMP_CWORD": "2"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, check=False, env={**os.environ, **asked}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "first\n"), done.stderr
