"""An error about a setting names it as the user gave it: the option on the command line, the key in a file."""

from typing import Any

import pytest

from qat_tft.cli.options.settings import configuration, every_setting, flag_of, naming_options
from qat_tft.errors import ConfigError


def refused(given: dict[str, Any], base: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        configuration(given, base, where="my.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "base", "start"),
    [
        pytest.param({"training.batch_size": 0}, {}, "--batch-size: Input should be", id="option"),
        pytest.param({}, {"training": {"batch_size": 0}}, "my.toml: training.batch_size: Input", id="file"),
        pytest.param({"quantization.target": "vax"}, {}, "--target-profile: Input", id="option of another name"),
        pytest.param({"model.quantiles": (0.5, 2.0)}, {}, "--quantiles.1: Input", id="entry of a list"),
        pytest.param({"model.heads": 3, "model.hidden": 4}, {}, "--heads 3 must divide --hidden 4.", id="two options"),
        pytest.param(
            {"model.heads": 3}, {"model": {"hidden": 4}}, "my.toml: --heads 3 must divide model.hidden 4", id="one each"
        ),
        pytest.param({"model.heads": 0}, {"data": {"tset": 1}}, "my.toml: unknown key data.tset; --heads", id="both"),
        pytest.param(
            {"training.memory_budget": "3", "training.checkpoint_mode": "auto"}, {}, "--memory-budget: '3'", id="where"
        ),
    ],
)
def test_an_error_names_the_option_or_the_key(given: dict[str, Any], base: dict[str, Any], start: str) -> None:
    assert refused(given, base).startswith(start)


def test_errors_raised_later_name_options_too_and_plain_words_stay_words() -> None:
    message = "validation_from lies after test_from; a test of training.seed, in validation"
    with pytest.raises(ConfigError) as caught, naming_options(every_setting()):
        raise ConfigError(message, where="data.parquet", next_step="Change data.validation or test_until.")
    assert str(caught.value) == (
        "data.parquet: --validation-from lies after --test-from; a test of --seed, in validation. "
        "Change --validation or --test-until."
    )


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(KeyError), naming_options(every_setting()):
        raise KeyError("training.seed")


def test_every_option_of_train_is_called_as_messages_call_it() -> None:
    from typer.main import get_command

    from qat_tft.cli.app import app

    train = get_command(app).commands["train"]  # type: ignore[attr-defined]
    options = {name for parameter in train.params for name in parameter.opts}
    flags = {flag_of(path) for path in every_setting()}
    assert len(flags) == len(every_setting())
    assert {"--batch-size", "--target-profile", "--parquet-file", "--use-qat"} <= flags & options
