"""The documentation's links lead somewhere, and what it lists is complete."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

INLINE_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"^\[[^\]]+\]: (\S+)$", re.MULTILINE)


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
