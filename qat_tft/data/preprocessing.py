"""What is learnt from the training rows before training: vocabularies, known series, scaling statistics."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError

from qat_tft.data.encoding import Encoding
from qat_tft.data.missing import MissingPolicy
from qat_tft.data.moments import Moments, training_blocks
from qat_tft.data.panel import Panel
from qat_tft.data.preparation import NO_PREPARATION, Preparation
from qat_tft.data.scaling import Affine, Scaling
from qat_tft.data.split import Part, Split
from qat_tft.data.transform import TargetTransform
from qat_tft.data.vocabulary import Vocabulary
from qat_tft.errors import DataError, SchemaError
from qat_tft.schema import MARK, PRESENT, Group, GroupSize, Schema

_FORMAT = 1
_NEARLY_ZERO = 1e-6  # relative; float32 keeps 7 digits, so a smaller deviation is rounding


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
        transform: of the target, whose statistics are those of the transformed values.
    """

    schema: Schema
    mode: ScalingMode
    series: tuple[tuple[str, ...], ...]
    vocabularies: dict[str, Vocabulary]
    statistics: dict[str, Statistics]
    preparation: Preparation = NO_PREPARATION
    transform: TargetTransform = TargetTransform.NONE

    @classmethod
    def fit(
        cls,
        panel: Panel,
        split: Split,
        mode: ScalingMode | str = ScalingMode.GLOBAL,
        transform: TargetTransform | str = TargetTransform.NONE,
    ) -> "Preprocessing":
        """Learn from the rows before ``split.validation_from`` and from nothing else.

        Args:
            panel: as read, not encoded.
            split: where training ends.
            mode: "global" or "series".
            transform: of the target.

        Raises:
            DataError: there is no training row, a real column is missing in all of them, or a target, in any row,
                cannot be transformed.
        """
        if panel.encoded:
            raise ValueError("fit needs the panel as read, not one that is already encoded")
        mode, transform = ScalingMode(mode), TargetTransform(transform)
        transform.require_domain(panel)
        if panel.preparation.policies.of(panel.schema.target, panel.schema) is MissingPolicy.ZERO:
            transform.require_zero()
        ends = panel.first_at(panel.series_start, split.bounds(Part.TRAIN)[1])
        seen = torch.nonzero(ends > panel.series_start[:-1]).squeeze(1)
        if not len(seen):
            raise DataError(
                f"there is no row before {panel.time_text(split.validation_from)}, where validation begins",
                where=panel.source,
                next_step="Start validation later.",
            )
        history, static = panel.schema.group("historical"), panel.schema.group("static")
        moments, used = _over_training_rows(panel, ends, transform)
        _refuse_never_present(panel, history.real, moments)
        nothing = np.empty(0, dtype=np.int64)
        statistics = _statistics(history.real, moments, seen.numpy() if mode is ScalingMode.SERIES else nothing)
        vocabularies = {
            column: _vocabulary(column, panel.dictionaries[column], codes)
            for column, codes in zip(history.category, used, strict=True)
        }
        once = panel.static[seen].numpy()  # a static value counts once for its series
        of_static = Moments.zeros(1, len(static.real))
        of_static.add(np.zeros(len(seen), np.int64), once[:, : len(static.real)].astype(np.float64))
        _refuse_never_present(panel, static.real, of_static)
        statistics |= _statistics(static.real, of_static, nothing)
        for mark in {PRESENT, f"{panel.schema.target}{MARK}"} & statistics.keys():  # the model reads them as they are
            statistics[mark] = Statistics((0.0,), (1.0,))
        for place, column in enumerate(static.category, start=len(static.real)):
            codes = np.unique(once[:, place]).astype(np.int64)
            vocabularies[column] = _vocabulary(column, panel.dictionaries[column], codes)
        ids = tuple(panel.series_ids[series] for series in seen.tolist())
        return cls(panel.schema, mode, ids, vocabularies, statistics, panel.preparation, transform)

    def encode(self, panel: Panel) -> Panel:
        """The panel with codes for categories and series, and what stands in for missing values; its rows are shared.

        Values and series that were not seen in training get 0; the notes of the panel name and count them.

        Raises:
            DataError: a target that cannot be transformed.
        """
        if panel.encoded:
            return panel
        self._check_schema(panel.schema)
        self.transform.require_domain(panel)
        per_series = self.mode is ScalingMode.SERIES
        return Encoding(self.vocabularies, self.series, per_series, self.fill_values()).encode(panel)

    def fill_values(self) -> dict[str, tuple[float, ...]]:
        """Raw training means of the columns whose missing values they replace, as ``with_fills`` takes them.

        That of a transformed target is the mean of the transformed values, taken back.
        """
        policies, found = self.preparation.policies, {}
        for column in self.preparation.source_schema(self.schema).real_columns:
            if policies.of(column, self.schema) in (MissingPolicy.FORWARD, MissingPolicy.MEAN):
                found[column] = self.statistics[column].center
        if self.schema.target in found:
            center = torch.tensor(found[self.schema.target], dtype=torch.float64)
            found[self.schema.target] = tuple(self.transform.invert(center).tolist())
        return found

    def usual_values(self, deviations: float) -> dict[str, tuple[tuple[float, float], ...]]:
        """Return the raw values that lie so many training deviations below and above each real column's mean.

        For all series where scaling is global, else for each code of a series. A transformed target's are taken back.
        """
        found = {}
        for column, one in self.statistics.items():
            center, scale = (torch.tensor(values, dtype=torch.float64) for values in (one.center, one.scale))
            limits = torch.stack([center - deviations * scale, center + deviations * scale], -1)
            limits = self.transform.invert(limits) if column == self.schema.target else limits
            largest = torch.finfo(torch.float32).max
            found[column] = tuple((low, high) for low, high in limits.clamp(-largest, largest).tolist())
        return found

    def scaling(self) -> Scaling:
        """The scaling module for these statistics."""
        static, historical, future = (self._affine(group) for group in self.schema.groups)
        per_series = self.mode is ScalingMode.SERIES
        return Scaling(static, historical, future, per_series=per_series, transform=self.transform)

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
            "target_transform": str(self.transform),
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
                preparation=Preparation.from_json(value.get("preparation") or {}),
                transform=TargetTransform(value.get("target_transform", TargetTransform.NONE)),
            )
            made._require_lengths()
            made.scaling(), made.group_sizes()
        except (KeyError, TypeError, AttributeError, OverflowError, ValidationError, SchemaError) as error:
            raise ValueError(f"not the preprocessing of a run: {type(error).__name__} {error}") from None
        return made

    def _require_lengths(self) -> None:
        """Raise a ValueError where ids or statistics are not as many as the mode has series."""
        if len(set(self.series)) != len(self.series) or any(len(ids) != len(self.schema.id) for ids in self.series):
            raise ValueError("series that are there twice, or have other ids than the schema")
        entries = 1 if self.mode is ScalingMode.GLOBAL else len(self.series) + 1
        for group in self.schema.groups:
            for column in group.real:
                allowed = {1} if group.name == "static" else {1, entries}
                lengths = {len(self.statistics[column].center), len(self.statistics[column].scale)}
                if len(lengths) > 1 or not lengths <= allowed:
                    raise ValueError(f"statistics of '{column}' for {max(lengths)} entries, not {max(allowed)}")

    def _check_schema(self, schema: Schema) -> None:
        if schema != self.schema:
            raise SchemaError(
                "the schema is not the one that the preprocessing was fitted for",
                next_step="Use the schema.toml of the run.",
            )

    def _size(self, group: Group) -> GroupSize:
        cardinalities = tuple(self.vocabularies[column].size for column in group.category)
        return GroupSize(len(group.real), cardinalities, group.present, group.missing)

    def _affine(self, group: Group) -> Affine:
        rows = 1 if group.name == "static" or self.mode is ScalingMode.GLOBAL else len(self.series) + 1
        center, scale = torch.zeros(rows, group.size), torch.ones(rows, group.size)
        for place, column in enumerate(group.real):
            center[:, place] = torch.tensor(self.statistics[column].center, dtype=torch.float64)
            scale[:, place] = torch.tensor(self.statistics[column].scale, dtype=torch.float64)
        return Affine(center, scale)


def _over_training_rows(
    panel: Panel, ends: torch.Tensor, transform: TargetTransform
) -> tuple[Moments, list[npt.NDArray[np.int64]]]:
    # Moments of the real columns of the history in each series, and the values that each category column has there.
    history = panel.schema.group("historical")
    moments = Moments.zeros(len(panel.series_ids), len(history.real))
    used = [np.zeros(len(panel.dictionaries[column]), dtype=bool) for column in history.category]
    for series, values in training_blocks(panel, ends):
        real = values[:, : len(history.real)].astype(np.float64)
        real[:, 0] = transform.apply(torch.from_numpy(real[:, 0])).numpy()
        moments.add(series, real)
        for place, seen in enumerate(used, start=len(history.real)):
            seen[values[:, place].astype(np.int64)] = True
    return moments, [np.flatnonzero(seen) for seen in used]


def _vocabulary(column: str, dictionary: tuple[str, ...], codes: npt.NDArray[np.int64]) -> Vocabulary:
    return Vocabulary.fit(column, (dictionary[code] for code in codes.tolist()))


def _statistics(columns: tuple[str, ...], moments: Moments, series: npt.NDArray[np.int64]) -> dict[str, Statistics]:
    """Those over all series and, after them, of each of ``series``."""
    all_ = moments.over_all()
    center, deviation = all_.mean[0], all_.deviation[0]
    over_all = np.where(_vanishes(deviation, center), 1.0, deviation)
    centers, deviations = moments.mean[series], moments.deviation[series]
    centers = np.where(moments.count[series] > 0, centers, center)  # nothing there: as for a series not seen
    # A series that never moved in training may move later: measured by its own scale, that would be without bound. What
    # is left of differences in double precision is no movement; a small series beside large ones is.
    still = _vanishes(deviations, centers) | (deviations <= np.finfo(np.float64).eps * over_all)
    scales = np.where(still, over_all, deviations)
    return {
        column: Statistics(
            (float(center[place]), *centers[:, place].tolist()), (float(over_all[place]), *scales[:, place].tolist())
        )
        for place, column in enumerate(columns)
    }


def _refuse_never_present(panel: Panel, columns: tuple[str, ...], moments: Moments) -> None:
    for column, count in zip(columns, moments.count.sum(axis=0), strict=True):
        if not count:
            raise DataError(
                f"column '{column}' is missing in every training row",
                where=panel.source,
                next_step="Leave it out of the schema, or start validation later.",
            )


def _vanishes(deviation: Any, center: Any) -> Any:
    return deviation <= _NEARLY_ZERO * np.abs(center) + np.finfo(np.float32).tiny
