"""What a setting is called where it is given: in a file, as an option of the command line, as an argument in Python."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from qat_tft.config.fields import Section
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError

NO = "--no-"
"""What the option of a setting begins with that it turns off."""

Given = dict[str, Any]
"""Settings that were given, by path: section and key, such as `training.batch_size`."""


def every_setting() -> tuple[str, ...]:
    """Return section and key of every setting that there is."""
    return tuple(f"{name}.{key}" for name in RunConfig.model_fields for key in section_called(name).model_fields)


def section_called(name: str) -> type[Section]:
    """Return the section of the configuration that has this name."""
    section = RunConfig.model_fields[name].annotation
    assert isinstance(section, type)
    assert issubclass(section, Section)
    return section


def flag_of(path: str) -> str:
    """Return the option that stands for a setting: `training.batch_size` is `--batch-size`."""
    section, key = path.split(".")
    return section_called(section).flags.get(key, f"--{key.replace('_', '-')}")


def name_of(path: str) -> str:
    """Return the parameter of a command that stands for a setting: `training.batch_size` is `batch_size`."""
    return flag_of(path).removeprefix("--").replace("-", "_")


def argument_of(path: str) -> str:
    """Return the argument in Python that stands for a setting: as `name_of`, but what is turned off there is False."""
    return path.split(".")[1] if flag_of(path).startswith(NO) else name_of(path)


def configuration(
    given: Given, base: dict[str, Any], *, where: str, called: Callable[[str], str] = flag_of
) -> RunConfig:
    """Return the configuration of a file's nested values with the given settings, by path, put over them.

    Args:
        given: the settings that go over the file's.
        base: of the file; empty without one.
        where: what a message calls the file.
        called: what a message calls a given setting.

    Raises:
        ConfigError: an unknown key or an impossible value.
    """
    values = {name: dict(part) if isinstance(part, dict) else part for name, part in base.items()}
    for path, value in given.items():
        section, key = path.split(".")
        part = values.setdefault(section, {})
        if isinstance(part, dict):
            part[key] = value
    with naming_options(given, file=where, called=called):
        return RunConfig.checked(values, where=where)


@contextmanager
def naming_options(paths: Iterable[str], *, file: str = "", called: Callable[[str], str] = flag_of) -> Iterator[None]:
    """Let an error about these settings name them as the user typed them.

    Args:
        paths: section and key of each setting.
        file: where the other settings come from; left out of an error that names nothing but options.
        called: what the user calls a setting.

    Raises:
        ConfigError: the one from within, reworded.
    """
    names = {path: called(path) for path in paths}
    try:
        yield
    except ConfigError as error:
        what, allowed, next_step = (_with_names(part, names) for part in (error.what, error.allowed, error.next_step))
        where = _with_names(error.where, names)
        if where == file and what != error.what and not _KEY.search(what):
            where = ""
        raise ConfigError(what, where=where, allowed=allowed, next_step=next_step) from None


_KEY = re.compile(rf"\b({'|'.join(RunConfig.model_fields)})\.[a-z_]+")


def _with_names(text: str, names: Mapping[str, str]) -> str:
    """The text with each key replaced; without its section only where an underscore shows that it is no plain word."""
    for path, name in names.items():
        key = path.split(".")[1]
        bare = rf"|(?<![\w.`-]){key}\b" if "_" in key else ""
        text = re.sub(rf"\b{re.escape(path)}\b{bare}", name, text)
    return text
