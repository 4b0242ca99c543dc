"""The navigation lists every decision, without a line for each in mkdocs.yml."""

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig

FOLDER = "decisions/"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the folder where the navigation names the folder."""
    pages = sorted(Path(config.docs_dir, FOLDER).glob("*.md"))
    config.nav = _with_pages(config.nav, [f"{FOLDER}{page.name}" for page in pages])
    return config


def _with_pages(entry: Any, pages: list[str]) -> Any:
    if isinstance(entry, list):
        return [_with_pages(one, pages) for one in entry]
    if isinstance(entry, dict):
        return {title: _with_pages(one, pages) for title, one in entry.items()}
    return pages if entry == FOLDER else entry
