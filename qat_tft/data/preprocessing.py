"""What is learnt from the training rows before training: vocabularies, known series, scaling statistics."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError

from qat_tft.data.panel import Panel
from qat_tft.data.preparation import AS_IT_IS, Preparation
from qat_tft.data.scaling import Affine, Scaling
from qat_tft.data.split import Part, Split
from qat_tft.data.vocabulary import UNKNOWN, Vocabulary
from qat_tft.errors import DataError, SchemaError
from qat_tft.schema import Group, GroupSize, Schema

_FORMAT = 1
_NEARLY_ZERO = 1e-6  # relative; float32 keeps 7 digits, so a smaller deviation is rounding
_NAMED_VALUES = 5


class ScalingMode(StrEnum):
    """Whose mean and deviation standardize a series."""

    GLOBAL = "global"  # those over all series
    SERIES = "series"  # its own; those over all series where it was not seen in training


@dataclass(frozen=True)
class Statistics:
    """Center and scale of one real column; entry 0 is over all series, entry n that of the series of code n."""

    center: tuple[float, ...]
    scale: tuple[float, ...]


@dataclass(frozen=True)
class Preprocessing:
    """Everything that turns raw values into model inputs and back.

    Attributes:
        schema: the roles for which it was made.
        mode: whose statistics scale a series.
        series: ids of the series with training rows; ``series[i]`` has the code ``i + 1``, 0 is any other.
        vocabularies: category column to its vocabulary.
        statistics: real column to its statistics; static columns have one entry, in either mode.
        preparation: what was done to the rows before; new rows need the same.
    """

    schema: Schema
    mode: ScalingMode
    series: tuple[tuple[str, ...], ...]
    vocabularies: dict[str, Vocabulary]
    statistics: dict[str, Statistics]
    preparation: Preparation = AS_IT_IS

    @classmethod
    def fit(cls, panel: Panel, split: Split, mode: ScalingMode | str = ScalingMode.GLOBAL) -> "Preprocessing":
        """Learn from the rows before ``split.validation_from`` and from nothing else.

        Args:
            panel: as read, not encoded.
            split: where training ends.
            mode: "global" or "series".

        Raises:
            DataError: there is no training row.
        """
        if panel.encoded:
            raise ValueError("fit needs the panel as read, not one that is encoded already")
        rows = _TrainingRows.of(panel, split)
        mode = ScalingMode(mode)
        history, static = panel.schema.group("historical"), panel.schema.group("static")
        vocabularies, statistics = {}, {}
        for place, column in enumerate(history.columns):
            values = panel.values[:, place].numpy()[rows.mask]
            if column in history.real:
                statistics[column] = _statistics(values.astype(np.float64), rows.starts, mode)
            else:
                vocabularies[column] = _vocabulary(panel, column, values)
        for place, column in enumerate(static.columns):
            values = panel.static[:, place].numpy()[rows.series]
            if column in static.real:
                statistics[column] = _statistics(values.astype(np.float64), rows.starts[:0], ScalingMode.GLOBAL)
            else:
                vocabularies[column] = _vocabulary(panel, column, values)
        ids = tuple(panel.series_ids[series] for series in rows.series)
        return cls(panel.schema, mode, ids, vocabularies, statistics, panel.preparation)

    def encode(self, panel: Panel) -> Panel:
        """The panel with vocabulary codes in its category columns and codes for its series.

        Values and series that were not seen in training get 0; the notes of the panel name and count them.
        """
        if panel.encoded:
            return panel
        self._check_schema(panel.schema)
        history, static = panel.schema.group("historical"), panel.schema.group("static")
        values = panel.values.clone() if history.category else panel.values
        static_values = panel.static.clone()
        notes = list(panel.notes)
        for group, buffer in ((history, values), (static, static_values)):
            for place, column in enumerate(group.category, start=len(group.real)):
                codes = self.vocabularies[column].encode(panel.dictionaries[column])
                old = buffer[:, place].numpy().astype(np.int64)
                new = codes[old]
                buffer[:, place] = torch.from_numpy(new.astype(np.float32))
                notes.extend(_unknown_values(column, panel.dictionaries[column], old[new == UNKNOWN], group))
        known = {ids: code for code, ids in enumerate(self.series, start=UNKNOWN + 1)}
        series = [known.get(ids, UNKNOWN) for ids in panel.series_ids]
        notes.extend(self._unseen_series(panel, series))
        return dataclasses.replace(
            panel,
            values=values,
            static=static_values,
            series_code=torch.tensor(series, dtype=torch.int64),
            dictionaries={},
            encoded=True,
            notes=tuple(notes),
        )

    def scaling(self) -> Scaling:
        """The scaling module for these statistics."""
        static, historical, future = (self._affine(group) for group in self.schema.groups)
        return Scaling(static, historical, future, per_series=self.mode is ScalingMode.SERIES)

    def group_sizes(self, schema: Schema | None = None) -> tuple[GroupSize, GroupSize, GroupSize]:
        """Sizes of the static, historical and future group.

        Raises:
            SchemaError: a schema is given and is not the one that this was made for.
        """
        if schema is not None:
            self._check_schema(schema)
        static, historical, future = (self._size(group) for group in self.schema.groups)
        return static, historical, future

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``from_json`` reads them back without a loss."""
        return {
            "format": _FORMAT,
            "schema": self.schema.model_dump(mode="json"),
            "mode": str(self.mode),
            "series": [list(ids) for ids in self.series],
            "vocabularies": {column: vocabulary.to_json() for column, vocabulary in self.vocabularies.items()},
            "statistics": {
                column: {"center": list(found.center), "scale": list(found.scale)}
                for column, found in self.statistics.items()
            },
            "preparation": self.preparation.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> "Preprocessing":
        """The inverse of ``to_json``.

        Raises:
            ValueError: it is not what ``to_json`` gives, or from a later version.
        """
        try:
            if value["format"] != _FORMAT:
                raise ValueError(f"preprocessing format {value['format']!r}; this version reads {_FORMAT}")
            made = cls(
                schema=Schema.model_validate(value["schema"]),
                mode=ScalingMode(value["mode"]),
                series=tuple(tuple(map(str, ids)) for ids in value["series"]),
                vocabularies={
                    column: Vocabulary.from_json(column, values) for column, values in value["vocabularies"].items()
                },
                statistics={
                    column: Statistics(tuple(map(float, one["center"])), tuple(map(float, one["scale"])))
                    for column, one in value["statistics"].items()
                },
                preparation=Preparation.from_json(value.get("preparation")),
            )
            made.scaling(), made.group_sizes()
        except (KeyError, TypeError, AttributeError, ValidationError, SchemaError) as error:
            raise ValueError(f"not the preprocessing of a run: {type(error).__name__} {error}") from None
        return made

    def _check_schema(self, schema: Schema) -> None:
        if schema != self.schema:
            raise SchemaError(
                "the schema is not the one that the preprocessing was fitted for",
                next_step="Use the schema.toml of the run.",
            )

    def _size(self, group: Group) -> GroupSize:
        return GroupSize(len(group.real), tuple(self.vocabularies[column].size for column in group.category))

    def _affine(self, group: Group) -> Affine:
        rows = 1 if group.name == "static" or self.mode is ScalingMode.GLOBAL else len(self.series) + 1
        center, scale = torch.zeros(rows, group.size), torch.ones(rows, group.size)
        for place, column in enumerate(group.real):
            center[:, place] = torch.tensor(self.statistics[column].center, dtype=torch.float64)
            scale[:, place] = torch.tensor(self.statistics[column].scale, dtype=torch.float64)
        return Affine(center, scale)

    def _unseen_series(self, panel: Panel, codes: list[int]) -> list[str]:
        unseen = [panel.series_name(place) for place, code in enumerate(codes) if code == UNKNOWN]
        if not unseen or not panel.schema.id:
            return []
        effect = " and are scaled by the statistics over all series" if self.mode is ScalingMode.SERIES else ""
        return [f"{len(unseen)} series have no training row{effect}: {_some(unseen)}."]


@dataclass(frozen=True)
class _TrainingRows:
    """Which rows train, in which series, and where each of these series starts among them."""

    mask: npt.NDArray[np.bool_]
    series: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, panel: Panel, split: Split) -> "_TrainingRows":
        mask = panel.time.numpy() < split.bounds(Part.TRAIN)[1]
        if not mask.any():
            raise DataError(
                f"no row lies before {panel.time_text(split.validation_from)}, where validation begins",
                where=panel.source,
                next_step="Let validation begin later.",
            )
        per_series = np.bincount(panel.series_of_row.numpy()[mask], minlength=len(panel.series_ids))
        series = np.flatnonzero(per_series)
        starts = np.concatenate([[0], np.cumsum(per_series[series])[:-1]]).astype(np.int64)
        return cls(mask, series, starts)


def _vocabulary(panel: Panel, column: str, codes: npt.NDArray[np.float32]) -> Vocabulary:
    dictionary = panel.dictionaries[column]
    return Vocabulary.fit(column, (dictionary[code] for code in np.unique(codes).astype(np.int64)))


def _statistics(values: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], mode: ScalingMode) -> Statistics:
    center, deviation = float(values.mean()), float(values.std())
    over_all = 1.0 if _vanishes(deviation, center) else deviation
    if mode is ScalingMode.GLOBAL:
        return Statistics((center,), (over_all,))
    counts = np.diff(np.append(starts, len(values)))
    centers = np.add.reduceat(values, starts) / counts
    deviations = np.sqrt(np.add.reduceat((values - np.repeat(centers, counts)) ** 2, starts) / counts)
    # A series that never moved in training may move later: measured by its own scale, that would be without bound.
    still = _vanishes(deviations, centers) | (deviations <= _NEARLY_ZERO * over_all)
    scales = np.where(still, over_all, deviations)
    return Statistics((center, *centers.tolist()), (over_all, *scales.tolist()))


def _vanishes(deviation: Any, center: Any) -> Any:
    return deviation <= _NEARLY_ZERO * np.abs(center) + np.finfo(np.float32).tiny


def _unknown_values(
    column: str, dictionary: tuple[str, ...], unknown: npt.NDArray[np.int64], group: Group
) -> list[str]:
    if not len(unknown):
        return []
    values = [dictionary[code] for code in np.unique(unknown)]
    unit = "series" if group.name == "static" else "rows"
    return [
        f"column '{column}' holds {len(values)} values that no training row has, read as unknown in "
        f"{len(unknown):,} {unit}: {_some(values)}."
    ]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_VALUES} more" if len(names) > _NAMED_VALUES else ""
    return ", ".join(names[:_NAMED_VALUES]) + more
