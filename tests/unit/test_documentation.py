"""The documentation's links lead somewhere, and what it lists is complete."""

import re
from functools import cache
from pathlib import Path

import pytest
import typer

from qat_tft.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

INLINE_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"^\[[^\]]+\]: (\S+)$", re.MULTILINE)
COMMAND = re.compile(r"(?:^ {4}|`)qat-tft (?P<words>[a-z](?:[^`\n\\]|\\\n)*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    text = page.read_text()
    targets = [target.split("#")[0] for target in INLINE_LINK.findall(text) + REFERENCE.findall(text)]
    broken = [t for t in targets if t and "://" not in t and not (page.parent / t).exists()]
    assert not broken


def test_the_index_lists_every_decision() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in DECISIONS if f"decisions/{page.name}" not in index] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_states_context_choice_and_cost(page: Path) -> None:
    headings = [line for line in page.read_text().splitlines() if line.startswith("#")]
    assert headings[0].startswith(f"# {page.name[:3]}: ")
    assert headings[1:] == ["## Context", "## Choice", "## Cost"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_a_command_on_a_page_has_the_options_it_is_given(page: Path) -> None:
    unknown = [
        (words, option)
        for words in COMMAND.findall(page.read_text(encoding="utf-8"))
        for option in OPTION.findall(words.partition("#")[0])
        if option not in options_of(words.split()[0])
    ]
    assert unknown == []


def test_there_are_commands_on_the_pages() -> None:
    assert sum(len(COMMAND.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 100


@cache
def options_of(name: str) -> set[str]:
    """The options of a command, and of those within it."""
    group = typer.main.get_command(app)
    command = group.commands[name]  # type: ignore[attr-defined]
    inner = [*getattr(command, "commands", {}).values()]
    return {"--help"} | {
        text for one in (command, *inner) for each in one.params for text in (*each.opts, *each.secondary_opts)
    }
