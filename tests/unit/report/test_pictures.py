"""Pictures stand inside a page: its colours, no fonts or names of their own, equal bytes for equal arrays."""

import re
from dataclasses import replace

import numpy as np
import pytest

from qat_tft.report import pictures
from qat_tft.report.content import ReportContent
from qat_tft.report.explanations import AttentionByLag
from qat_tft.report.pictures import with_own_names
from qat_tft.report.quality import StepErrors

COLORS = re.compile(r"#[0-9a-f]{6}\b")


@pytest.fixture(scope="session")
def drawn(content: ReportContent) -> list[str]:
    return [
        pictures.draw_fan(content.fans.shown[0], content.levels, content.middle),
        pictures.draw_curves(content.curves),
        pictures.draw_reliability(content.risks, content.levels),
        pictures.draw_errors_by_step(content.steps),
        pictures.draw_inside_by_step(content.steps, 0.8),
        pictures.draw_attention(content.explanations.attention),
    ]


def test_every_color_is_the_pages(drawn: list[str]) -> None:
    for svg in drawn:
        assert COLORS.findall(svg) == []
        assert "currentColor" in svg
    assert "var(--fp32)" in drawn[3]
    assert "var(--int8)" in drawn[3]
    assert "var(--simple)" in drawn[3]


def test_words_stay_text_and_nothing_is_brought_along(drawn: list[str]) -> None:
    for svg in drawn:
        assert svg.startswith("<svg viewBox=")
        assert svg.endswith("</svg>")
        assert "<text" in svg
        assert not re.search(r"metadata|xmlns|<style|font:|font-family|DejaVu", svg)
        assert [tag for tag in re.findall(r"<[^>]+>", svg) if re.search(r"\d\.\d{3}", tag)] == []


def test_two_pictures_of_a_page_share_no_name(drawn: list[str]) -> None:
    one, other = (with_own_names(drawn[1], name) for name in ("one", "other"))
    names = [set(re.findall(r'id="([^"]+)"', svg)) for svg in (one, other)]
    assert names[0]
    assert not names[0] & names[1]
    used = re.findall(r'(?:url\(#|href="#)([^")]+)', one + other)
    assert used
    assert set(used) <= names[0] | names[1]


def test_a_long_history_is_drawn_by_means_of_neighbours() -> None:
    values = tuple(np.arange(10_000.0))
    lags = tuple(range(-9_999, 1))
    svg = pictures.draw_attention([AttentionByLag("fp32", "FP32", lags, values, values, values)])
    assert len(svg) < 40_000
    thinned = pictures._thinned(values)
    assert len(thinned) == 400
    assert thinned[:2].tolist() == [12.0, 37.0]
    assert pictures._thinned((1.0, 2.0)).tolist() == [1.0, 2.0]


def test_coordinates_are_shortened_and_numbers_to_be_read_are_not(content: ReportContent) -> None:
    (phase, _) = content.curves
    epochs = tuple(replace(one, train_loss=0.0125, validation_loss=0.0126) for one in phase.epochs)
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", pictures.draw_curves([replace(phase, epochs=epochs)]))
    assert any(re.fullmatch(r"0\.01\d\d+", label) for label in labels), labels


def test_a_single_step_is_a_dot_and_steps_are_whole(content: ReportContent) -> None:
    one = [replace(step, error=step.error[:1]) for step in content.steps]
    svg = pictures.draw_errors_by_step(one)
    assert all(f"fill: var(--{kind})" in svg for kind in ("fp32", "int8", "simple"))
    assert "fill: var(--fp32)" not in pictures.draw_errors_by_step([_long(step) for step in content.steps])
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", pictures.draw_errors_by_step(content.steps))
    assert {"1", "2", "3"} <= set(labels)
    assert "1.5" not in labels[: labels.index("horizon step")]


def _long(one: StepErrors) -> StepErrors:
    return replace(one, error=one.error * 5)
