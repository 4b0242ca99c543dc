"""Pages on their way to the user: written where they belong or where they were asked for, and opened."""

import webbrowser
from collections.abc import Callable
from pathlib import Path

from qat_tft.cli import console
from qat_tft.errors import RunFolderError, UnwritableError
from qat_tft.report.page import write_page


def written_page(make: Callable[[], str], asked: Path | None, usual: Path) -> Path | None:
    """Write a page and return its path; None, and a note, where it cannot be made or nothing may be written there.

    Args:
        make: returns the page.
        asked: the file that the user named.
        usual: where it goes otherwise.

    Raises:
        RunFolderError: the page that was asked for cannot be made or written, or the usual one does not fit.
    """
    try:
        html = make()
    except RunFolderError as failure:
        if asked is not None:
            raise
        console.note(f"No page is written: {failure}")
        return None
    try:
        write_page(asked or usual, html)
    except UnwritableError as failure:
        if asked is not None:
            raise
        console.note(f"No page is written: {failure} --out FILE writes it elsewhere.")
        return None
    return asked or usual


def shown_in_browser(page: Path) -> None:
    """Open a page in the browser; a note tells where it is if there is none."""
    if not webbrowser.open(page.resolve().as_uri()):
        console.note(f"There is no browser to show {page} in.")
