"""Errors in the words of Python: arguments where the command line has options, tables where it has files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from qat_tft.config.names import argument_of, every_setting, flag_of, naming_options
from qat_tft.errors import UserError
from qat_tft.schema import Role

_OF_METHODS = {
    "--parquet-file": "data",
    "--future-file": "future",
    "--from": "since",
    **{f"--{name.replace('_', '-')}": name for name in ("until", "stride", "max_windows", "out", "origin", "threads")},
    **{f"--{name.replace('_', '-')}": name for name in ("lstm", "store", "target", "weight_bits", "model")},
    **{f"--{name.replace('_', '-')}": name for name in ("schema", "config", "name", "runs_dir")},
}
_ARGUMENTS = {
    **{flag_of(path): argument_of(path) for path in every_setting()},
    **{f"--{role}": str(role) for role in Role},
    **_OF_METHODS,
}
_OPTION = re.compile(r"--[a-z][a-z0-9-]*")

TRAINING = frozenset(_ARGUMENTS)
"""The options of the command line for which `Forecaster` and `fit` have an argument."""


def code_of(path: str) -> str:
    """Return what messages call the argument that stands for a setting."""
    return f"`{_ARGUMENTS[flag_of(path)]}`"


@contextmanager
def in_python(
    *, ways: Collection[str] = (), places: Mapping[str, str] | None = None, given: Collection[str] | None = None
) -> Iterator[None]:
    """Let errors name arguments instead of options, and tables instead of the files that they were written to.

    Args:
        given: the settings, by path, that are arguments; the others stand in a file. By default all of them.
        ways: the options whose arguments whoever reads the error can change.
        places: path of a file to what the user knows it as; may be filled within the block.

    Raises:
        UserError: the one from within, of the same kind, reworded.
    """

    def words(text: str) -> str:
        for path, name in (places or {}).items():
            text = text.replace(path, name)
        return with_arguments(text)

    try:
        with naming_options(every_setting() if given is None else given, called=code_of):
            yield
    except UserError as error:
        raise error.reworded(words, ways, trainer="a Forecaster") from error.__cause__


def with_arguments(text: str) -> str:
    """Return a text in which arguments stand for options; commands, which stand between backticks, stay."""
    parts = text.split("`")
    parts[::2] = [_OPTION.sub(_argument, part) for part in parts[::2]]
    return "`".join(parts)


def _argument(option: re.Match[str]) -> str:
    argument = _ARGUMENTS.get(option[0])
    return option[0] if argument is None else f"`{argument}`"
