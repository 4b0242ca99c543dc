"""Seasonal differences are taken where the configuration says so, or where they are small."""

import dataclasses

import pytest
import torch

from qat_tft.data.reading.fingerprint import fingerprint
from qat_tft.errors import ConfigError
from qat_tft.runs.data import load_data
from qat_tft.training.seasonal_choice import STRONG, difference_for, usual_difference


def shape(config, **changes):
    return config.model.model_copy(update={"seasonal_difference": None, **changes})


def test_the_usual_difference_is_that_of_scaled_training_rows(data):
    season, squares = 24, []
    scaling = data.preprocessing.scaling()
    for series in range(len(data.panel.series_ids)):
        rows = torch.arange(int(data.panel.series_start[series]), int(data.panel.series_start[series + 1]))
        rows = rows[data.panel.time[rows] < data.split.validation_from]
        code = data.panel.series_code[series].view(1)
        scaled = scaling.scale_target(data.panel.target[rows].unsqueeze(0), code).squeeze(0)
        squares.append((scaled[season:] - scaled[:-season]).square())
    expected = torch.cat(squares).mean().sqrt()
    assert usual_difference(data, season) == pytest.approx(float(expected), rel=1e-5)


def test_a_missing_target_has_no_difference(data):
    season = 24
    values = data.panel.values.clone()
    values[::5, 0] = torch.nan
    holed = dataclasses.replace(data, panel=dataclasses.replace(data.panel, values=values))
    series = data.panel.series_at(torch.arange(len(values)))
    scaled = data.preprocessing.scaling().scale_target(values[:, :1], data.panel.series_code[series])
    squares = []
    for row in range(season, len(values)):
        trains = data.panel.time[row] < data.split.validation_from
        inside = series[row] == series[row - season]
        if trains and inside and row % 5 and (row - season) % 5:
            squares.append(float(scaled[row] - scaled[row - season]) ** 2)
    assert usual_difference(holed, season) == pytest.approx((sum(squares) / len(squares)) ** 0.5, rel=1e-5)


def test_histories_shorter_than_a_season_are_not_differenced_over_it(data, config):
    short = config.data.model_copy(update={"min_history": 23})
    assert difference_for(data, short, shape(config, history=48)).season == 0
    assert difference_for(data, short.model_copy(update={"min_history": 24}), shape(config, history=48)).season == 24


def test_a_strong_season_is_found_and_needs_a_history_of_two(data, config):
    found = difference_for(data, config.data, shape(config, history=48))
    assert found.season == 24
    assert 0 < found.spread < STRONG
    assert "24 rows" in found.sentence()
    assert difference_for(data, config.data, shape(config, history=47)).season == 0


def test_a_weak_season_is_left_alone(data, config):
    noise = data.panel.values.clone()
    noise[:, 0] = torch.randn(len(noise), generator=torch.Generator().manual_seed(0))
    other = dataclasses.replace(data, panel=dataclasses.replace(data.panel, values=noise))
    assert difference_for(other, config.data, shape(config, history=48)).season == 0


def test_the_configuration_decides_against_and_for(data, config):
    assert difference_for(data, config.data, shape(config, history=48, seasonal_difference=0)).season == 0
    assert difference_for(data, config.data, shape(config, seasonal_difference=7)).season == 7
    assert "over one row" in difference_for(data, config.data, shape(config, seasonal_difference=1)).sentence()


def test_a_season_longer_than_every_series_is_refused(data, config):
    with pytest.raises(ConfigError, match=r"model\.seasonal_difference"):
        difference_for(data, config.data, shape(config, history=1000, seasonal_difference=1000))


def test_a_file_without_a_schema_says_how_to_get_one(config):
    with pytest.raises(Exception, match="qat-tft inspect"):
        load_data(config.data, config.model, None)


def test_the_fingerprint_of_a_panel_sees_one_changed_value(data):
    values = data.panel.values.clone()
    values[5, 1] += 1e-3
    changed = dataclasses.replace(data.panel, values=values)
    assert fingerprint(data.panel) == fingerprint(data.panel) != fingerprint(changed)
