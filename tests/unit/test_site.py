"""The site of the documentation builds without a warning, is read without a network, and its reference is complete."""

import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import qat_tft
from qat_tft.cli.app import COMMANDS
from qat_tft.export.metadata import ModelMetadata
from qat_tft.runs import layout
from qat_tft.schema import Columns, Schema

ROOT = Path(__file__).resolve().parents[2]
FILES_PAGE = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href"}
"""Elements whose attribute a browser fetches without being asked; of links, those that name no other page."""
PAGES_OF_LINKS = {"canonical", "next", "prev", "alternate"}

needs_docs = pytest.mark.skipif(
    importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocstrings") is None,
    reason="the extra docs is not installed",
)


class Fetches(HTMLParser):
    """Collects what reading a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in FETCHED and values.get("rel") not in PAGES_OF_LINKS:
            self.found.append(values.get(FETCHED[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site into a folder of its own, as `make docs` does."""
    out = tmp_path_factory.mktemp("site")
    # Without --quiet, under which --strict counts no warning.
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@needs_docs
def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    fetched = set()
    for page in pages:
        parser = Fetches()
        parser.feed(page.read_text(encoding="utf-8"))
        fetched |= set(parser.found)
    assert any(one.endswith(".css") for one in fetched)
    assert [one for one in fetched if "//" in one] == []
    sheets = [sheet.read_text(encoding="utf-8") for sheet in site.rglob("*.css")]
    assert not [sheet for sheet in sheets if re.search(r"(url\(|@import )['\"]?(https?:)?//", sheet)]


@needs_docs
def test_the_reference_has_every_command_with_its_options_and_every_public_name(site: Path) -> None:
    commands = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    assert [name for name in (*COMMANDS, "runs rm") if f">qat-tft {name}<" not in commands] == []
    assert all(f"<code>{option}" in commands for option in ("--use-gradient-checkpointing", "--int8", "--epochs"))
    assert "<code>--duplicates error|last|mean</code>" in commands
    assert not re.search(r"\[/?(dim|bold|)\]", commands)
    names = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert [name for name in qat_tft.__all__ if name != "__version__" and f'id="qat_tft.{name}"' not in names] == []


@needs_docs
def test_a_file_that_a_page_links_to_is_a_page_of_the_site(site: Path) -> None:
    page = (site / "python-api.html").read_text(encoding="utf-8")
    assert 'href="repository/examples/forecaster.py.html"' in page
    assert "TemporaryDirectory" in (site / "repository" / "examples" / "forecaster.py.html").read_text(encoding="utf-8")


def test_the_page_of_files_names_every_file_of_a_run_folder() -> None:
    names = {layout.CONFIG, layout.SCHEMA, layout.TABLE, layout.PREPROCESSING, layout.METRICS, layout.RESULTS}
    names |= {layout.CHECK, layout.PICTURE, layout.PAGE, layout.CHECK_WINDOWS, layout.TRACKING, layout.TENSORBOARD}
    names |= {*layout.WEIGHTS.values(), *layout.ONNX.values(), *layout.UNTIL_FINISHED, *layout.BESIDE_RUNS}
    names |= {layout.LAUNCHER, layout.COMPARISON}
    assert [name for name in sorted(names) if not re.search(rf"`(runs/)?{re.escape(name)}`", FILES_PAGE)] == []


def test_the_page_of_files_names_every_input_and_every_key_of_the_metadata() -> None:
    one = Columns(real=("a",), category=("b",))
    schema = Schema(time="t", target="y", static=one, observed=Columns(real=("c",), category=("d",)))
    schema = schema.model_copy(update={"known": Columns(real=("e",), category=("f",))})
    vocabularies = dict.fromkeys("bdf", ("x",))
    metadata = ModelMetadata("fp32", schema, vocabularies, ((),), (0.5,), 2, 1)
    tables = FILES_PAGE.partition("## Inputs and outputs")[2]
    names = [spec.name for spec in metadata.inputs()] + list(json.loads(metadata.to_text()))
    assert len(names) > 25
    rows = "".join(line.split("|")[1] for line in tables.splitlines() if line.startswith("|"))
    assert [name for name in names if f"`{name}`" not in rows] == []
