"""Command line options that stand for settings of the configuration: help and defaults come from there."""

from typing import Any

import typer
from rich.markup import escape

from qat_tft.config import RunConfig, Section
from qat_tft.errors import ConfigError


def setting(path: str, *names: str, panel: str, metavar: str | None = None) -> Any:
    """Return the option for a setting; not given, it is None, so that a configuration file can decide.

    Args:
        path: section and key, such as "training.epochs".
        names: the option's names, such as "--epochs".
        panel: heading under which the help shows it.
        metavar: what the help shows as its value.
    """
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


def _section(name: str) -> type[Section]:
    section = RunConfig.model_fields[name].annotation
    assert isinstance(section, type)
    assert issubclass(section, Section)
    return section


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
