"""Command line options that stand for settings of the configuration: help and defaults come from there."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.markup import escape

from qat_tft.config import RunConfig, Section
from qat_tft.errors import ConfigError

_OTHER_FLAGS = {"data.parquet_files": "--parquet-file", "quantization.target": "--target-profile"}


def flag_of(path: str) -> str:
    """Return the option that stands for a setting: `training.batch_size` is `--batch-size`."""
    return _OTHER_FLAGS.get(path, f"--{path.split('.')[1].replace('_', '-')}")


def every_setting() -> tuple[str, ...]:
    """Return section and key of every setting that there is."""
    return tuple(f"{name}.{key}" for name in RunConfig.model_fields for key in _section(name).model_fields)


@contextmanager
def naming_options(paths: Iterable[str], *, file: str = "") -> Iterator[None]:
    """Let an error about these settings name their options, as the user typed them.

    Args:
        paths: section and key of each setting.
        file: where the other settings come from; left out of an error that names nothing but options.

    Raises:
        ConfigError: the one from within, reworded.
    """
    flags = {path: flag_of(path) for path in paths}
    try:
        yield
    except ConfigError as error:
        what, allowed, next_step = (_with_flags(part, flags) for part in (error.what, error.allowed, error.next_step))
        where = _with_flags(error.where, flags)
        if where == file and what != error.what and not _KEY.search(what):
            where = ""
        raise ConfigError(what, where=where, allowed=allowed, next_step=next_step) from None


_KEY = re.compile(rf"\b({'|'.join(RunConfig.model_fields)})\.[a-z_]+")


def _with_flags(text: str, flags: Mapping[str, str]) -> str:
    """The text with each key replaced; without its section only where an underscore shows that it is no plain word."""
    for path, flag in flags.items():
        key = path.split(".")[1]
        bare = rf"|(?<![\w.-]){key}\b" if "_" in key else ""
        text = re.sub(rf"\b{re.escape(path)}\b{bare}", flag, text)
    return text


def setting(path: str, *names: str, panel: str, metavar: str | None = None) -> Any:
    """Return the option for a setting; not given, it is None, so that a configuration file can decide.

    Args:
        path: section and key, such as "training.epochs".
        names: the option's names, such as "--epochs".
        panel: heading under which the help shows it.
        metavar: what the help shows as its value.
    """
    assert names == (flag_of(path),), "messages name the option by flag_of"
    section, key = path.split(".")
    field = _section(section).model_fields[key]
    text = escape(f"{field.description}")
    if field.default is not None:
        text = rf"{text} [dim]\[default: {escape(_shown(field.default))}][/dim]"
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel, metavar=metavar)


def configuration(given: dict[str, Any], base: dict[str, Any], *, where: str) -> RunConfig:
    """Return the configuration of a file's nested values with the given settings, by path, put over them.

    Raises:
        ConfigError: an unknown key or an impossible value.
    """
    values = {name: dict(part) if isinstance(part, dict) else part for name, part in base.items()}
    for path, value in given.items():
        section, key = path.split(".")
        part = values.setdefault(section, {})
        if isinstance(part, dict):
            part[key] = value
    with naming_options(given, file=where):
        return RunConfig.checked(values, where=where)


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Return the numbers of a comma-separated list; None stays None.

    Raises:
        ConfigError: a part is not a number.
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"{option} {text} is not a list of numbers", allowed="numbers separated by commas") from None


def share(text: str | None, option: str) -> float | None:
    """Return a share written as 0.005 or 0.5%; None stays None.

    Raises:
        ConfigError: it is neither, or below zero.
    """
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ConfigError(f"{option} {text} is no share", allowed="a number of at least 0, such as 0.005 or 0.5%")
    return value


def _section(name: str) -> type[Section]:
    section = RunConfig.model_fields[name].annotation
    assert isinstance(section, type)
    assert issubclass(section, Section)
    return section


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
