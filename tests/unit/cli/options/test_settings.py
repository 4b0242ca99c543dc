"""An error about a setting names it as the user gave it: the option on the command line, the key in a file."""

from types import SimpleNamespace
from typing import Any

import pytest

from qat_tft.cli.app import main
from qat_tft.cli.options.settings import choices_of
from qat_tft.config.names import configuration, every_setting, flag_of, naming_options
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError
from qat_tft.quantization.scheme import TARGETS


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


def options_of_train() -> dict[str, Any]:
    from typer.main import get_command

    from qat_tft.cli.app import app

    train = get_command(app).commands["train"]  # type: ignore[attr-defined]
    return {name: parameter for parameter in train.params for name in parameter.opts}


def test_every_setting_has_an_option_or_says_that_it_stands_in_files_only() -> None:
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    only_in_files = {f"{name}.{key}" for name, section in sections.items() for key in section.only_in_files}  # type: ignore[union-attr]
    assert only_in_files < set(every_setting())
    flags = {path: flag_of(path) for path in every_setting()}
    assert len(set(flags.values())) == len(flags)
    options = options_of_train()
    assert {flag for path, flag in flags.items() if path not in only_in_files} <= options.keys()
    assert options.keys().isdisjoint(flags[path] for path in only_in_files)


def test_an_option_shows_choices_default_and_help_of_its_setting() -> None:
    options = options_of_train()
    assert options["--target-profile"].metavar == choices_of("quantization.target") == "|".join(TARGETS)
    assert options["--checkpoint-mode"].metavar == "off|aggressive|full|auto"
    assert options["--test-from"].metavar == "TIME"
    assert "Windows per batch, over all ranks. [dim]\\[default: 64]" in options["--batch-size"].help
    assert "default" not in options["--season"].help
    assert options["--no-cache"].help.startswith("Do not keep")


def test_options_arrive_as_settings_and_those_that_were_not_used_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def start(given: dict[str, Any], roles: dict[str, str], **_: Any) -> SimpleNamespace:
        seen.update(given, **roles)
        return SimpleNamespace(next_step=lambda runs_dir: "")

    monkeypatch.setattr("qat_tft.cli.train_run.start", start)
    monkeypatch.setattr("qat_tft.cli.console.emit", lambda *_, **__: None)
    words = "--no-cache --quantiles 0.1,0.5 --use-qat --epochs 3 --dropout 0.2 --target load --float-layers a,b"
    assert main(["train", *words.split(), "--parquet-file", "a b", "--parquet-file", "c"]) == 0
    assert seen == {
        "data.parquet_files": ["a b", "c"],
        "data.cache": False,
        "model.quantiles": "0.1,0.5",
        "model.dropout": 0.2,
        "training.epochs": 3,
        "quantization.use_qat": True,
        "quantization.float_layers": "a,b",
        "target": "load",
    }
    seen.pop("target")
    assert configuration(seen, {}, where="here").model.quantiles == (0.1, 0.5)
