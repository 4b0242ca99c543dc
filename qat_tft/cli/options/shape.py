"""The options that say what would be trained, without training it: shared by `plan` and `profile`."""

from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any, Self

import typer

from qat_tft.cli.options.settings import keyword, option_of, with_options
from qat_tft.config.model import ModelConfig
from qat_tft.config.names import Given, configuration, name_of
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError
from qat_tft.schema import GroupSize, Schema

Groups = tuple[GroupSize, GroupSize, GroupSize]

OPTIONS = "the options"
"""Where a setting of no file stands, in an error's message."""

_MOST_NUMBERS = 2**40
"""4 TiB in single precision."""

_COUNTS = {"static": 5, "observed": 210, "known": 10}
_SETTINGS: Given = {
    "model.history": 50,
    "model.horizon": 10,
    "model.hidden": 128,
    "model.heads": 4,
    "model.encoder_layers": 0,
    "model.selection": ModelConfig().selection,
    "model.knots": ModelConfig().knots,
    "model.selection_chunk": ModelConfig().selection_chunk,
    "training.batch_size": 32,
    "training.precision": "fp32",
}
"""The settings that decide what a step takes, and the tft225 shape."""


def _count(name: str, what: str) -> Parameter:
    text = rf"{what} [dim]\[default: {_COUNTS[name]}][/dim]"
    option = typer.Option(f"--{name}", help=text, rich_help_panel="Data", metavar="COUNT", show_default=False)
    return keyword(name, int | None, option)


def _file(flag: str, kind: Any, what: str) -> Parameter:
    option = typer.Option(flag, help=what, rich_help_panel="Data", metavar="FILE", show_default=False)
    return keyword(flag.removeprefix("--").replace("-", "_"), kind | None, option)


_SOURCES = (
    _count("static", "Columns constant per series."),
    _count("observed", "Columns known up to the present, including the target."),
    _count("known", "Columns also known for future steps."),
    _file("--parquet-file", list[str], "Take the columns from this data instead; repeatable."),
    _file("--schema", str, "Schema of that data. Default: the one next to it."),
)
_USE_QAT = keyword(
    "use_qat",
    bool,
    typer.Option("--use-qat/--no-use-qat", help="Include the quantization-aware phase."),
    default=True,
)


@dataclass(frozen=True)
class Shape:
    """What would be trained, as the options say it.

    Attributes:
        settings: settings by path.
        counts: columns of each group, None where it was not said.
        parquet_files: files to take the columns from instead.
        schema: their schema, None for the one next to the first.
    """

    settings: Given
    counts: dict[str, int | None]
    parquet_files: list[str]
    schema: str | None

    @classmethod
    def of_options(cls, values: dict[str, Any]) -> Self:
        """Return the shape that the options' values amount to."""
        settings = {path: values[name_of(path)] for path in (*_SETTINGS, "quantization.use_qat")}
        counts = {name: values[name] for name in _COUNTS}
        return cls(settings, counts, values["parquet_file"] or [], values["schema"])

    def config(self, **training: Any) -> RunConfig:
        """Return the configuration; `training` are further settings of that section, None for its default.

        Raises:
            ConfigError: an impossible value, or columns that are both counted and taken from data.
        """
        more = {f"training.{name}": value for name, value in training.items() if value is not None}
        config = configuration({**self.settings, **more}, {}, where=OPTIONS)
        self._require_one_source()
        return config

    def groups(self, config: RunConfig) -> Groups:
        """Return the widths of the static, historical and future group, from counts of columns or from data.

        Raises:
            UserError: the data or the schema cannot be read, or a tensor of a step would be larger than anything.
        """
        groups = _of_data(config, self.parquet_files, self.schema) if self.parquet_files else _of_counts(self.counts)
        _require_possible_size(config, groups)
        return groups

    def _require_one_source(self) -> None:
        for name, count in self.counts.items():
            least = 1 if name == "observed" else 0
            if count is not None and count < least:
                raise ConfigError(
                    f"the number of columns cannot be {count}", where=f"--{name}", allowed=f"{least} or more"
                )
            if count is not None and self.parquet_files:
                raise ConfigError(f"--{name} and --parquet-file both set the number of columns", allowed="one of them")
        if self.schema is not None and not self.parquet_files:
            raise ConfigError(
                "--schema without --parquet-file", next_step="Add the --parquet-file that the schema describes"
            )


with_shape = with_options(
    "shape",
    [*_SOURCES, *(option_of(path, default) for path, default in _SETTINGS.items()), _USE_QAT],
    Shape.of_options,
)
"""Gives a command the options of a shape; the command gets the `Shape` as `shape`."""


def _require_possible_size(config: RunConfig, groups: Groups) -> None:
    """Check that sizes in bytes stay far from the limits of 64 bits, at the largest batch that is looked for too."""
    model, columns = config.model, sum(group.total for group in groups)
    rows = max(config.training.batch_size * (model.history + model.horizon), model.hidden)
    numbers = rows * columns * model.hidden
    if numbers > _MOST_NUMBERS:
        raise ConfigError(
            f"one layer of such a model would hold {numbers:.0e} numbers at once",
            where=OPTIONS,
            allowed=f"up to {_MOST_NUMBERS:.0e}",
            next_step="Lower --batch-size, --history, --horizon, --hidden or the number of columns",
        )


def _of_counts(counts: dict[str, int | None]) -> Groups:
    static, observed, known = (
        default if counts[name] is None else counts[name] or 0 for name, default in _COUNTS.items()
    )
    # What is known of the future is history as well.
    return GroupSize(static), GroupSize(observed + known), GroupSize(known)


def _of_data(config: RunConfig, files: list[str], schema_file: str | None) -> Groups:
    from qat_tft.data.roles.choice import Roles, choose_schema
    from qat_tft.data.sample.samples import schema_path
    from qat_tft.runs.data import load_data

    file = Path(schema_file) if schema_file else schema_path(Path(files[0]))
    chosen = choose_schema(files, Roles(), file if schema_file or file.is_file() else None)
    schema = chosen.schema if chosen else Schema.read(file)  # which is not there: its message says how to make one
    data = load_data(config.data.model_copy(update={"parquet_files": tuple(files)}), config.model, schema)
    return data.preprocessing.group_sizes(data.schema)
