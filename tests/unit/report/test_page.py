"""The page of a run: whole HTML that needs nothing beside it, says what is there, and lets no data become markup."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest

from qat_tft.report.comparison import compare_runs
from qat_tft.report.content import ReportContent, collect
from qat_tft.report.evidence import FileForecasts
from qat_tft.report.page import comparison_page, run_page, write_page
from qat_tft.runs.folder import RunFolder

VOID = {"meta", "br", "hr", "img", "link", "input"}
MARKUP = "<b>x</b> & $y$"
MOST_BYTES = 2 * 2**20


class Page(HTMLParser):
    """Every tag with its attributes, headings in order, and text; a tag that is closed out of turn fails."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] or "" for _, attributes in self.tags if attribute in attributes]


@pytest.fixture(scope="session")
def html(content: ReportContent) -> str:
    return run_page(content)


@pytest.fixture(scope="session")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_needs_nothing_beside_it(html: str, page: Page) -> None:
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object"}
    references = page.values("src") + page.values("href") + page.values("xlink:href")
    assert references
    assert [one for one in references if not one.startswith("#")] == []
    assert re.findall(r"url\((?!#)|@import|https?:", html) == []
    assert len(html.encode()) < MOST_BYTES


def test_every_reference_inside_the_page_leads_to_one_place(html: str, page: Page) -> None:
    ids = Counter(page.values("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    used = [one.removeprefix("#") for one in page.values("href")] + re.findall(r"url\(#([^)]+)\)", html)
    assert set(used) <= set(ids)


def test_it_can_be_read_by_everyone(page: Page) -> None:
    assert ("html", {"lang": "en"}) in page.tags
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.tags if tag == "th")
    pictures = [attributes["aria-label"] for _, attributes in page.tags if attributes.get("role") == "img"]
    assert len(pictures) == Counter(tag for tag, _ in page.tags)["svg"] == 8
    assert all(pictures)


def test_it_says_the_answer_first(page: Page, content: ReportContent) -> None:
    figure = "\N{MINUS SIGN}30.0\N{NO-BREAK SPACE}%"
    places = [page.text.index(what) for what in (content.lead, figure, "passed", "Forecasts: the best")]
    assert places == sorted(places)
    assert "What this run lacks" not in page.text


def test_names_out_of_data_are_text(html: str, page: Page) -> None:
    assert not {tag for tag, _ in page.tags} & {"b", "i", "em"}
    assert page.text.count(MARKUP) >= 2  # a variable and a column
    assert "<em>something</em>" in page.text
    assert "plant=" in page.text
    assert MARKUP not in html


def test_a_target_that_is_markup_is_text_in_captions_and_labels(content: ReportContent) -> None:
    told = Page(run_page(replace(content, target='"><script>alert(1)</script>')))
    assert "script" not in {tag for tag, _ in told.tags}
    assert any('"><script>' in label for label in told.values("aria-label"))


def test_equal_content_gives_equal_bytes(
    finished: RunFolder, integer_file: FileForecasts, html: str, content: ReportContent
) -> None:
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.grid": True, "svg.hashsalt": "other"}):
        again = run_page(collect(finished, integer_file))
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert again == html


def test_what_is_missing_stands_there_with_its_command(
    changeable: RunFolder, results_without: Callable[[RunFolder, str], None]
) -> None:
    for key in ("coverage", "windows", "parameters", "notes", "checkpointing", "validation_loss", "version"):
        results_without(changeable, key)
    for name in ("check.json", "metrics.jsonl", "model.fp32.onnx", "model.int8.onnx", "qat.safetensors"):
        (changeable.path / name).unlink()
    told = Page(run_page(collect(changeable)))
    for command in ("qat-tft check --run mine", "qat-tft export mine", "qat-tft train", "qat-tft profile"):
        assert command in told.text
    assert "The losses of the epochs are not shown" in told.text
    assert "What INT8 changes" not in told.text


def test_a_page_replaces_the_one_before_it(tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", "old")
    write_page(tmp_path / "report.html", "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("report.html", "new")]


def test_two_runs_stand_side_by_side_on_a_page_that_keeps_the_same_promises(
    finished: RunFolder, changeable: RunFolder
) -> None:
    html = comparison_page(compare_runs(finished, changeable))
    told = Page(html)
    assert [one for one in told.values("src") + told.values("href") if not one.startswith("#")] == []
    assert not {tag for tag, _ in told.tags} & {"b", "i", "em", "script"}
    assert [name for name, count in Counter(told.values("id")).items() if count > 1] == []
    levels = [int(tag[1]) for tag, _ in told.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert Counter(tag for tag, _ in told.tags)["svg"] == 2 * 8
    assert "Nothing: options and columns are the same." in told.text


def test_words_and_colors_stand_out_in_light_and_dark() -> None:
    css = files("qat_tft.report").joinpath("templates/style.css").read_text()
    light, dark = (dict(COLOR.findall(part)) for part in css.split("prefers-color-scheme: dark"))
    assert light["paper"] != dark["paper"]
    for theme in (light, dark):
        for name in ("ink", "soft", "fp32", "int8", "simple", "other", "good", "bad"):
            assert contrast(theme[name], theme["paper"]) >= READABLE, (name, theme["paper"])
        assert min(contrast(theme[name], theme["panel"]) for name in ("ink", "soft")) >= READABLE


COLOR = re.compile(r"--(\w+): #([0-9a-f]{6})")
READABLE = 4.5
"""Contrast of text that WCAG 2 asks for at level AA."""


def contrast(one: str, other: str) -> float:
    """Contrast of two colors, by WCAG 2."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    shares = [int(color[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
