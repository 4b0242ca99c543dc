"""The data of a run: read, split, fitted and cut into windows, from its configuration alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qat_tft.config.data import DataConfig
from qat_tft.config.model import ModelConfig
from qat_tft.data.panel import Panel
from qat_tft.data.preprocessing import Preprocessing, ScalingMode
from qat_tft.data.reading.files.find import Paths
from qat_tft.data.reading.parquet import ReadingProgress, read_panel
from qat_tft.data.sample.samples import embedded_rentals
from qat_tft.data.scaling import Scaling
from qat_tft.data.split import Part, Split
from qat_tft.data.windows import Windows
from qat_tft.errors import DataError, SchemaError
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Schema

FILL_VALUE = 1e9
"""Standard deviations from the training mean at which a number is no measurement but stands for a missing one."""

_LARGEST_LOGARITHM = 104.0  # magnitude of the logarithm of any positive float32, which a transformed target may be


@dataclass(frozen=True)
class RunData:
    """What a run trains and is tested on; `panel` is encoded.

    `declared` holds the roles that the user gave, `schema` those and the derived columns, such as calendar features.
    """

    declared: Schema
    schema: Schema
    panel: Panel
    split: Split
    preprocessing: Preprocessing
    training: Windows
    validation: Windows
    test: Windows

    @property
    def training_ends(self) -> Tensor:
        """The row after the last training row of each series, int64 [S]; naive errors come from the rows before."""
        return self.panel.first_at(self.panel.series_start, self.split.bounds(Part.TRAIN)[1])

    def digest(self) -> str:
        """Return a fingerprint of the rows as they were read, to notice that the data of a resumed run have changed."""
        return self.panel.fingerprint


def load_data(
    data: DataConfig,
    model: ModelConfig,
    schema: Schema | None,
    *,
    preprocessing: Preprocessing | None = None,
    reading: ReadingProgress | None = None,
) -> RunData:
    """Read the rows a configuration names and cut them into windows; no file named: the embedded bike rentals.

    Args:
        data: files, split and standardization.
        model: history and horizon.
        schema: roles of the columns; None only for the embedded bike rentals.
        preprocessing: fitted before, by the run that is resumed; otherwise it is fitted on the training rows.
        reading: is told how far reading the rows has come.

    Raises:
        SchemaError: the schema is missing or does not fit the file.
        DataError: the rows cannot be used, a number is absurdly far from all others, or a part has no window.
        ConfigError: the split leaves a part empty.
    """
    files: list[str] = list(data.parquet_files)
    if not files:
        path, own_schema = embedded_rentals()
        files, schema = [str(path)], schema or own_schema
    if schema is None:
        raise SchemaError(
            "no schema is given",
            where=files[0],
            next_step="Name the roles with --schema FILE or with --time, --target and the other role options; "
            "`qat-tft inspect FILE --write-schema schema.toml` proposes one",
        )
    preparation = data.preparation if preprocessing is None else preprocessing.preparation
    raw = read_panel(
        files[0] if len(files) == 1 else files, schema, preparation, cache=data.cache_folder, progress=reading
    )
    split = split_of(data, raw)
    split.require_training_rows(raw)
    mode = ScalingMode.GLOBAL if model.normalize == "global" else ScalingMode.SERIES
    fitted = preprocessing or Preprocessing.fit(raw, split, mode, data.target_transform)
    panel = fitted.encode(raw)
    _refuse_fill_values(panel, fitted)

    def windows(part: Part) -> Windows:
        return Windows(
            panel,
            history=model.history,
            horizon=model.horizon,
            split=split,
            part=part,
            unknown_rate=data.unknown_rate,
        )

    parts = windows(Part.TRAIN), windows(Part.VALIDATION), windows(Part.TEST)
    return RunData(schema, panel.schema, panel, split, fitted, *parts)


def load_data_of(run: RunFolder, *, reading: ReadingProgress | None = None) -> RunData:
    """Read the rows of a run again, with the vocabularies and statistics that it fitted.

    Args:
        run: finished or not; its data files must still be there.
        reading: is told how far reading the rows has come.

    Raises:
        UserError: as `load_data`, or the run folder is damaged.
    """
    config = run.load_config()
    return load_data(
        config.data, config.model, run.load_schema(), preprocessing=run.load_preprocessing(), reading=reading
    )


def load_panel_for(
    run: RunFolder, files: Sequence[str | Path] = (), *, reading: ReadingProgress | None = None
) -> tuple[Paths, Panel]:
    """Return the paths and the encoded panel of other files with the columns of a run, or of the run's own.

    `reading` is told how far reading the rows has come.

    Raises:
        UserError: the run, its files or the data cannot be used.
    """
    config, preprocessing = run.load_config(), run.load_preprocessing()
    named = [*(files or config.data.parquet_files or embedded_rentals()[:1])]
    paths: Paths = named[0] if len(named) == 1 else named  # a single one may be a folder
    raw = read_panel(
        paths,
        run.load_schema(),
        preprocessing.preparation,
        checked=not files,
        cache=config.data.cache_folder,
        progress=reading,
    )
    return paths, preprocessing.encode(raw)


def split_of(data: DataConfig, panel: Panel) -> Split:
    """Return where the parts of a panel lie: at the times that are set, else by shares.

    Raises:
        ConfigError: a time cannot be read, the times are in the wrong order, or the shares leave no training row.
    """
    if data.validation_from is not None:
        return Split.by_time(panel, data.validation_from, data.test_from, data.test_until)
    return Split.by_fraction(panel, data.validation, data.test, data.test_until)


def _refuse_fill_values(panel: Panel, fitted: Preprocessing) -> None:
    """Refuse numbers so far from the training mean that single precision cannot carry them through a network."""
    scaling, groups = fitted.scaling(), panel.schema.groups
    static, history = groups[0].real, groups[1].real
    far = _scaled(panel, scaling, panel.series_start[:-1])[0][:, : len(static)].abs() >= FILL_VALUE
    if bool(far.any()):
        place = int(far.any(0).int().argmax())
        series = torch.nonzero(far[:, place]).flatten()
        raise _fill_value(panel, static[place], int(panel.series_start[series[0]]), len(series), static=True)
    if not _may_be_far(panel, fitted):
        return
    first, count = torch.zeros(len(history), dtype=torch.int64), torch.zeros(len(history), dtype=torch.int64)
    for rows in panel.blocks_before(panel.series_start[1:]):
        far = _scaled(panel, scaling, rows)[1][:, : len(history)].abs() >= FILL_VALUE  # a missing one is NaN
        if bool(far.any()):
            first = torch.where(count > 0, first, rows[far.int().argmax(0)])
            count += far.sum(0)
    if bool(count.any()):
        place = int((count > 0).int().argmax())
        raise _fill_value(panel, history[place], int(first[place]), int(count[place]), static=False)


def _may_be_far(panel: Panel, fitted: Preprocessing) -> bool:
    """Whether a value of the history may be that far: told from the largest of each column, without a pass."""
    for column in panel.schema.group("historical").real:
        if column not in panel.largest:  # derived: an indicator, or a place in the calendar
            continue
        statistics = fitted.statistics[column]
        largest = max(panel.largest[column], _LARGEST_LOGARITHM)
        if largest + max(map(abs, statistics.center)) >= FILL_VALUE * min(statistics.scale):
            return True
    return False


def _scaled(panel: Panel, scaling: Scaling, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scaled static values of the series of these rows, [rows, Vs], and the rows' own, [rows, Vh]."""
    series = panel.series_at(rows)
    no_future = torch.empty(len(rows), 0, len(panel.schema.group("future").columns))
    static, historical, _ = scaling.scale_inputs(
        panel.static[series], panel.values[rows].unsqueeze(1), no_future, panel.series_code[series]
    )
    return static, historical.squeeze(1)


def _fill_value(panel: Panel, column: str, row: int, count: int, *, static: bool) -> DataError:
    series = int(panel.series_at(torch.tensor([row])))
    place = panel.schema.group("static" if static else "historical").columns.index(column)
    value = float(panel.static[series, place] if static else panel.values[row, place])
    when = "" if static else f" at {panel.time_text(int(panel.time[row]))}"
    return DataError(
        f"column '{column}' holds {value:g}{when} ({panel.series_name(series)}) and {count} such values in all: "
        f"more than {FILL_VALUE:g} standard deviations from the training mean",
        where=panel.source,
        next_step="If it stands for a missing value, make it null and fill it, or drop those rows",
    )
