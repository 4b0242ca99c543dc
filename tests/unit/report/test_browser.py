"""Pages in a real browser: no error, nothing asked of any network, and nothing that keeps people out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qat_tft.report.comparison import compare_runs
from qat_tft.report.content import ReportContent
from qat_tft.report.page import comparison_page, run_page, unfinished_page
from qat_tft.report.unfinished import collect_unfinished
from qat_tft.runs.folder import RunFolder

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS = (400, 1400)
KEEPS_OUT = ("serious", "critical")


def _driver() -> ModuleType:
    spec = spec_from_file_location("chromium", ROOT / "docs" / "pictures" / "chromium.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = _driver()
    program = driver.find_chromium()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(driver.NAMES)} is installed")
    with driver.chromium(program) as started:
        yield started


@pytest.fixture(scope="module")
def pages(finished: RunFolder, content: ReportContent, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a run, of two runs, and of one that is not finished."""
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "run": run_page(content),
        "comparison": comparison_page(compare_runs(finished, finished)),
        "unfinished": unfinished_page(collect_unfinished(finished)),
    }
    for name, html in made.items():
        (folder / f"{name}.html").write_text(html)
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize("name", ["run", "comparison", "unfinished"])
def test_a_page_opens_without_an_error_and_asks_nothing_of_any_network(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    tab = browser.open(pages[name], 1400)
    assert tab.evaluate("document.querySelectorAll('h2').length") > 1
    assert tab.errors == []
    assert tab.requests == []


def test_errors_and_requests_of_a_page_are_noticed(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<h1>x</h1><img src='http://some.invalid/x.png'><script>console.error('a'); throw new Error('b')</script>"
    )
    tab = browser.open(tmp_path / "bad.html", 400)
    assert tab.requests == ["http://some.invalid/x.png"]
    assert len(tab.errors) >= 3  # the console's, the exception, and the picture that did not come


@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize("name", ["run", "comparison", "unfinished"])
def test_no_page_is_wider_than_the_screen(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    assert browser.open(pages[name], width).evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(not AXE.is_file(), reason=f"axe-core is not installed: .ci/run puts it into {AXE.parent}")
@pytest.mark.parametrize(
    ("name", "width", "scheme"),  # every page takes seconds: each size and each scheme once for that of a run
    [("run", 400, "light"), ("run", 1400, "dark"), ("comparison", 1400, "light"), ("unfinished", 400, "dark")],
)
def test_axe_finds_nothing_serious(browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    tab = browser.open(pages[name], width, scheme=scheme)
    tab.evaluate(AXE.read_text())
    found = tab.evaluate("axe.run()")
    assert len(found["passes"]) > 10
    serious = [one for one in found["violations"] if one["impact"] in KEEPS_OUT]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious] == []
