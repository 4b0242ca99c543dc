"""The options that say what would be trained, without training it: shared by `plan` and `profile`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qat_tft.cli.options.settings import configuration, option_for
from qat_tft.config.model import ModelConfig
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError
from qat_tft.schema import GroupSize, Schema

Groups = tuple[GroupSize, GroupSize, GroupSize]

OPTIONS = "the options"
"""Where a setting of no file stands, in an error's message."""

_MOST_NUMBERS = 2**40
"""4 TiB in single precision."""

CHUNK = ModelConfig().selection_chunk

_DATA = "Data"
_COUNTS = {"static": 5, "observed": 210, "known": 10}


def _count(name: str, what: str) -> Any:
    text = rf"{what} [dim]\[default: {_COUNTS[name]}][/dim]"
    return typer.Option(f"--{name}", help=text, rich_help_panel=_DATA, metavar="COUNT", show_default=False)


def _file(name: str, what: str) -> Any:
    return typer.Option(name, help=what, rich_help_panel=_DATA, metavar="FILE", show_default=False)


Static = Annotated[int | None, _count("static", "Columns constant per series.")]
Observed = Annotated[int | None, _count("observed", "Columns known up to the present, including the target.")]
Known = Annotated[int | None, _count("known", "Columns also known for future steps.")]
ParquetFiles = Annotated[
    list[str] | None, _file("--parquet-file", "Take the columns from this data instead; repeatable.")
]
SchemaFile = Annotated[str | None, _file("--schema", "Schema of that data. Default: the one next to it.")]
History = Annotated[int, option_for("model.history", show_default=True)]
Horizon = Annotated[int, option_for("model.horizon", show_default=True)]
Hidden = Annotated[int, option_for("model.hidden", show_default=True)]
Heads = Annotated[int, option_for("model.heads", show_default=True)]
EncoderLayers = Annotated[int, option_for("model.encoder_layers", show_default=True)]
SelectionChunk = Annotated[int, option_for("model.selection_chunk", show_default=True)]
BatchSize = Annotated[int, option_for("training.batch_size", show_default=True)]
Precision = Annotated[str, option_for("training.precision", show_default=True)]


def shape_config(
    *,
    history: int,
    horizon: int,
    hidden: int,
    heads: int,
    encoder_layers: int,
    selection_chunk: int,
    batch_size: int,
    precision: str,
    use_qat: bool,
    **training: Any,
) -> RunConfig:
    """Return the configuration that the options amount to; `training` are further settings of that section.

    Raises:
        ConfigError: an impossible value.
    """
    given = {
        "model.history": history,
        "model.horizon": horizon,
        "model.hidden": hidden,
        "model.heads": heads,
        "model.encoder_layers": encoder_layers,
        "model.selection_chunk": selection_chunk,
        "training.batch_size": batch_size,
        "training.precision": precision,
        "quantization.use_qat": use_qat,
        **{f"training.{name}": value for name, value in training.items()},
    }
    return configuration({path: value for path, value in given.items() if value is not None}, {}, where=OPTIONS)


def require_one_source(counts: dict[str, int | None], files: list[str] | None, schema: str | None) -> None:
    """Check that columns are counted or taken from data, not both, by options named `static`, `observed`, `known`.

    Raises:
        ConfigError: both are given, a count cannot be, or a schema has no data.
    """
    for name, count in counts.items():
        least = 1 if name == "observed" else 0
        if count is not None and count < least:
            raise ConfigError(f"the number of columns cannot be {count}", where=f"--{name}", allowed=f"{least} or more")
        if count is not None and files:
            raise ConfigError(f"--{name} and --parquet-file both set the number of columns", allowed="one of them")
    if schema is not None and not files:
        raise ConfigError(
            "--schema without --parquet-file", next_step="Add the --parquet-file that the schema describes"
        )


def groups_of(
    config: RunConfig, counts: dict[str, int | None], files: list[str] | None, schema_file: str | None
) -> Groups:
    """Return the widths of the static, historical and future group, from counts of columns or from data.

    Raises:
        UserError: the data or the schema cannot be read, or a tensor of a step would be larger than anything.
    """
    groups = _of_data(config, files, schema_file) if files else _of_counts(counts)
    _require_possible_size(config, groups)
    return groups


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
    from qat_tft.cli.options.roles import Roles, choose_schema
    from qat_tft.data.sample.samples import schema_path
    from qat_tft.runs.data import load_data

    file = Path(schema_file) if schema_file else schema_path(Path(files[0]))
    chosen = choose_schema(files, Roles(), file if schema_file or file.is_file() else None)
    schema = chosen.schema if chosen else Schema.read(file)  # which is not there: its message says how to make one
    data = load_data(config.data.model_copy(update={"parquet_files": tuple(files)}), config.model, schema)
    return data.preprocessing.group_sizes(data.schema)
