"""The model card: what the model is, what it was trained on, and everything that was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qat_tft.config.run import RunConfig
from qat_tft.data.preparation import Preparation
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.gap_search import learned_step
from qat_tft.data.time.kind import TimeKind
from qat_tft.errors import some_of
from qat_tft.runs.results import RunResults
from qat_tft.schema import Role, Schema

_GAPS = {
    "error": "refused",
    "ignore": "ignored: the next row is taken for the next step",
    "fill": "filled with rows",
    "split": "no window spans one",
}
_MOST_LISTED = 40
_DUPLICATES = {"error": "refused", "last": "the last row is kept", "mean": "averaged"}

Row = tuple[str, str]


@dataclass(frozen=True)
class ColumnRole:
    """The columns of one role and kind, in order.

    Attributes:
        role: such as "known".
        kind: "real", "category", or "" for time and ids.
        columns: those that are read.
        derived: those that are made of others instead.
    """

    role: str
    kind: str
    columns: tuple[str, ...]
    derived: tuple[str, ...]


@dataclass(frozen=True)
class ModelCard:
    """What is handed over with a model.

    Attributes:
        data: name and value of what it was trained and tested on.
        model: name and value of what it is.
        columns: every column, by role and kind.
        options: section to name and value of each setting.
        versions: package to version; of qat-tft alone where no file was exported.
        notes: what training had to say.
    """

    data: tuple[Row, ...]
    model: tuple[Row, ...]
    columns: tuple[ColumnRole, ...]
    options: dict[str, tuple[Row, ...]]
    versions: tuple[Row, ...]
    notes: tuple[str, ...]


def card_of(
    config: RunConfig,
    schema: Schema,
    preprocessing: Preprocessing,
    results: RunResults | None,
    versions: Mapping[str, str],
) -> ModelCard:
    """Return the card of a run; `schema` is what the user gave, `versions` those that wrote its file.

    A run that is not finished has no results.
    """
    own = {"qat-tft": results.version} if results is not None and results.version else {}
    return ModelCard(
        data=tuple(_data(config, schema, preprocessing, results)),
        model=tuple(_model(config, results)),
        columns=tuple(_columns(schema, preprocessing.preparation.effective_schema(schema))),
        options={name: _settings(section) for name, section in config.model_dump(mode="json").items()},
        versions=tuple({**own, **versions}.items()),
        notes=results.notes if results is not None else (),
    )


def _data(config: RunConfig, schema: Schema, preprocessing: Preprocessing, results: RunResults | None) -> Iterator[Row]:
    yield "Files", some_of(config.data.parquet_files) or "embedded bike rentals (Washington, D.C., 2011 and 2012)"
    yield "Target", schema.target
    yield "Time", schema.time
    named = f", named by {', '.join(schema.id)}" if schema.id else ""
    yield "Series", f"{len(preprocessing.series):,} seen in training{named}"
    yield from _time(preprocessing.preparation)
    if config.data.validation_from is not None:
        yield "Split", f"validation from {config.data.validation_from}, test from {config.data.test_from}"
    else:
        test, validation = config.data.test, config.data.validation
        yield "Split", f"the last {test:.0%} of the times test, the {validation:.0%} before them validate"
    windows = results.windows if results is not None else {}
    for part in ("train", "validation", "test"):
        if part in windows:
            yield f"Windows, {part}", f"{windows[part]:,}"
    yield "Target transform", str(preprocessing.transform.value)


def _time(preparation: Preparation) -> Iterator[Row]:
    time = preparation.time
    step = learned_step(preparation, TimeKind(time.kind), time.zone or None) if time is not None else None
    if step is not None:
        yield "Time step", step.text
    if time is not None:
        yield "Season", f"{time.season:,} steps"
        if time.zone:
            yield "Time zone", time.zone
    yield "Gaps", _GAPS[preparation.gaps]
    yield "Repeated rows", _DUPLICATES[preparation.duplicates]
    yield "Missing values", ", ".join(preparation.missing) or "refused"
    if preparation.min_history is not None:
        yield "Shortest history", f"{preparation.min_history:,} steps, padded at the front"
    if preparation.calendar:
        yield "Calendar features", ", ".join(preparation.calendar)


def _model(config: RunConfig, results: RunResults | None) -> Iterator[Row]:
    model = config.model
    yield "Architecture", "Temporal Fusion Transformer (Lim et al., 2021)"
    yield "History and horizon", f"{model.history:,} and {model.horizon:,} steps"
    yield "Hidden size, heads", f"{model.hidden}, {model.heads}"
    yield "Quantiles", ", ".join(f"{level:g}" for level in model.quantiles)
    if results is None:
        return
    if results.parameters:
        yield "Trained weights", f"{results.parameters:,}"
    if results.seconds:
        yield "Training time", f"{results.seconds:,.0f} s"
    for phase, loss in results.validation_loss.items():
        yield f"Best validation loss, {phase}", f"{loss:.4f}"


def _columns(declared: Schema, effective: Schema) -> Iterator[ColumnRole]:
    read, category = set(declared.used_columns), set(effective.category_columns)
    found: dict[tuple[Role, str], list[str]] = {}
    for column, roles in effective.roles().items():
        for role in roles:
            named = role in (Role.ID, Role.TIME)
            found.setdefault((role, "" if named else "category" if column in category else "real"), []).append(column)
    for role in Role:
        for kind in ("", "real", "category"):
            if columns := found.get((role, kind)):
                own = tuple(one for one in columns if one in read)
                yield ColumnRole(str(role), kind, own, tuple(one for one in columns if one not in read))


def _settings(section: Mapping[str, Any]) -> tuple[Row, ...]:
    return tuple((name, _shown(value)) for name, value in section.items())


def _shown(value: object) -> str:
    if value is None or value == [] or value == ():
        return "\N{EN DASH}"
    if isinstance(value, list | tuple):
        return some_of([*map(str, value)], _MOST_LISTED)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
