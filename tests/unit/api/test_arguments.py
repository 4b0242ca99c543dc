"""Settings are arguments by their plain names, and errors call them so."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from qat_tft.api.arguments import at_least_one, one_of, settings_of, time_text
from qat_tft.api.recipe import Recipe
from qat_tft.api.wording import TRAINING, in_python, with_arguments
from qat_tft.config.names import argument_of, every_setting
from qat_tft.errors import ConfigError, DataError, Way
from qat_tft.runs.layout import WeightsKind


def test_every_setting_but_the_files_has_an_argument_of_its_own() -> None:
    names = {path: argument_of(path) for path in every_setting()}
    assert len(set(names.values())) == len(names)
    files = names.pop("data.parquet_files")
    assert settings_of(dict.fromkeys(names.values(), 1)) == dict.fromkeys(names, 1)
    with pytest.raises(ConfigError, match=f"`{files}` is no setting. Give the files to fit"):
        settings_of({files: "a.parquet"})


def test_none_stands_for_the_default_and_a_path_for_its_text() -> None:
    assert settings_of({"season": None, "cache_dir": Path("a"), "cache": False}) == {
        "data.cache_dir": "a",
        "data.cache": False,
    }


def test_numbers_of_numpy_and_times_are_values_of_settings() -> None:
    given = settings_of(
        {"epochs": np.int64(3), "dropout": np.float32(0.5), "validation_from": datetime(2024, 1, 1), "test_from": 7}
    )
    config = Recipe(given=given).config()
    assert (config.training.epochs, config.model.dropout) == (3, 0.5)
    assert (config.data.validation_from, config.data.test_from) == ("2024-01-01 00:00:00", "7")


@pytest.mark.parametrize(
    ("name", "said"),
    [("epoch", "there is no setting `epoch`. Did you mean `epochs`"), ("zzzz", "Allowed: `accumulation`, ")],
)
def test_an_unknown_setting_is_refused_with_those_that_there_are(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_of({name: 1})


def test_the_limits_of_options_hold_for_arguments() -> None:
    one_of("model", None, WeightsKind)
    assert one_of("model", "qat", WeightsKind) == "qat"
    at_least_one(stride=1, threads=None)
    with pytest.raises(ConfigError, match=r"`model` is 'int8'. Allowed: 'fp32', 'qat'"):
        one_of("model", "int8", WeightsKind)
    with pytest.raises(ConfigError, match=r"`stride` is 0. Allowed: 1 or more"):
        at_least_one(threads=2, stride=0)
    assert time_text(datetime(2024, 1, 1)) == "2024-01-01 00:00:00"
    assert time_text(None) is None


def test_options_outside_of_commands_become_arguments() -> None:
    text = "Move --from or --until, or resume with `qat-tft train --resume x`; --frobnicate, --no-cache or --time"
    assert with_arguments(text) == (
        "Move `since` or `until`, or resume with `qat-tft train --resume x`; --frobnicate, `cache` or `time`"
    )


def test_an_error_names_arguments_of_those_who_can_change_them_and_training_for_the_others() -> None:
    refused = DataError("gaps", where="/a/b", ways=[Way("--gaps", "accept them with --gaps ignore")])
    with pytest.raises(DataError) as fitting, in_python(ways=TRAINING, places={"/a/b": "the table"}):
        raise refused
    with pytest.raises(DataError) as predicting, in_python():
        raise refused
    assert str(fitting.value) == "the table: gaps. Accept them with `gaps` ignore."
    assert str(predicting.value) == "/a/b: gaps. Train anew: a Forecaster can accept them with `gaps` ignore."


def test_a_setting_is_called_by_its_argument_once_and_by_its_key_where_a_file_has_it() -> None:
    with pytest.raises(ConfigError, match=r"^`batch_size`: Input should be"), in_python():
        Recipe(given={"training.batch_size": 0}).config()
    recipe = Recipe(given={"model.heads": 3}, base={"model": {"hidden": 4}}, config_file=Path("my.toml"))
    said = r"^my\.toml: `heads` 3 must divide model\.hidden 4"
    with pytest.raises(ConfigError, match=said), in_python(given=recipe.given):
        recipe.config()
