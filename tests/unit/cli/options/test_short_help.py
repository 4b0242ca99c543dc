"""`--help` fits on a page: the options people need first, and how to see the others."""

from itertools import pairwise

import pytest
from typer.main import get_command

from qat_tft.cli.app import COMMANDS, app, main
from qat_tft.cli.options.short_help import FIRST

PAGE = 60


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)


def options(name: str) -> list[str]:
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    return [one.opts[0] for one in command.params if one.param_type_name == "option"]


@pytest.mark.parametrize("name", FIRST)
def test_help_shows_ten_options_and_counts_the_others(capsys: pytest.CaptureFixture[str], name: str) -> None:
    every, first = set(options(name)), FIRST[name]
    assert len(first) == 10
    assert every.issuperset(first)
    text = shown(capsys, name, "--help")
    assert {one for one in every if f"│ {one} " in text} == {*first, "--help-all"}
    assert f"{len(every) - 11} more options: qat-tft {name} --help-all" in text
    assert text.count("\n") < PAGE


@pytest.mark.parametrize("name", FIRST)
def test_help_all_shows_every_option_also_after_a_short_one(capsys: pytest.CaptureFixture[str], name: str) -> None:
    command = get_command(app)
    for asked in "--help", "--help-all":
        command.main([name, asked], prog_name="qat-tft", standalone_mode=False)
    text = capsys.readouterr().out.split("more options")[1]
    assert [one for one in options(name) if f"│ {one} " not in text] == []


def test_every_command_with_many_options_has_a_short_help() -> None:
    many = {name for name in get_command(app).commands if len(options(name)) > 14}  # type: ignore[attr-defined]
    assert many == set(FIRST)


def test_options_behind_the_short_help_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--batch-size", "0"]) == 2
    assert "--batch-size" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_of_what_a_command_does_break_where_the_terminal_ends(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    prose, _, _ = shown(capsys, name, "--help").partition("╭")
    for paragraph in prose.split("\n" + " " * 100 + "\n"):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        for line, following in pairwise(lines):
            assert len(f"{line} {following.split()[0]}") > 98, line
