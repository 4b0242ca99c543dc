"""Codes for categories and series, and what stands in for missing values: the same from a run and from its file."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from qat_tft.data.filling import FillValues, with_fills
from qat_tft.data.moments import BLOCK_VALUES
from qat_tft.data.panel import Panel
from qat_tft.data.vocabulary import UNKNOWN, Vocabulary
from qat_tft.errors import some_of


@dataclass(frozen=True)
class Encoding:
    """What training rows taught about categories, series and missing values.

    Attributes:
        vocabularies: category column to its vocabulary.
        series: ids of the series with training rows; ``series[i]`` has the code ``i + 1``, 0 is any other. None
            where they are not known, which is as good where no series has statistics of its own.
        per_series: whether a series is scaled by its own statistics.
        fills: what missing values become, as ``with_fills`` takes it.
    """

    vocabularies: Mapping[str, Vocabulary]
    series: tuple[tuple[str, ...], ...] | None
    per_series: bool
    fills: FillValues

    def encode(self, panel: Panel, rows: torch.Tensor | None = None) -> Panel:
        """The panel with codes for categories and series, and what stands in for missing values; its rows are shared.

        Values and series that were not seen in training get 0; the notes of the panel name and count them.

        Args:
            panel: as read.
            rows: int64, those that will be read; by default all. Notes tell of no others, and of no others' series.
        """
        history, static = panel.schema.group("historical"), panel.schema.group("static")
        static_values = panel.static.clone()
        notes = list(panel.notes)
        recoding = [self._codes(panel, column) for column in history.category]
        for place, column in enumerate(history.category):
            indices = panel.values[:, len(history.real) + place]
            indices = indices if rows is None else indices[rows]
            notes.extend(_unknown_values(panel, column, indices, recoding[place], "row"))
        read = torch.arange(len(panel.series_ids)) if rows is None else torch.unique(panel.series_at(rows))
        for place, column in enumerate(static.category, start=len(static.real)):
            indices, codes = panel.static[:, place], self._codes(panel, column)
            notes.extend(_unknown_values(panel, column, indices[read], codes, "series"))
            static_values[:, place] = codes[indices.long()]
        known = {ids: code for code, ids in enumerate(self.series or (), start=UNKNOWN + 1)}
        series = [known.get(ids, UNKNOWN) for ids in panel.series_ids]
        notes.extend(self._unseen_series(panel, series, read.tolist()))
        encoded = dataclasses.replace(
            panel,
            static=static_values,
            series_code=torch.tensor(series, dtype=torch.int64),
            dictionaries={},
            recoding=tuple(recoding),
            encoded=True,
            notes=tuple(notes),
        )
        return with_fills(encoded, self.fills)

    def _codes(self, panel: Panel, column: str) -> torch.Tensor:
        """Code of each value of the panel's dictionary, float32."""
        return torch.from_numpy(self.vocabularies[column].encode(panel.dictionaries[column])).float()

    def _unseen_series(self, panel: Panel, codes: list[int], read: list[int]) -> list[str]:
        unseen = [panel.series_name(place) for place in read if codes[place] == UNKNOWN]
        if self.series is None or not unseen or not panel.schema.id:
            return []
        effect = " and are scaled by the statistics over all series" if self.per_series else ""
        return [f"{len(unseen)} series have no training row{effect}: {some_of(unseen)}."]


def _unknown_values(panel: Panel, column: str, indices: torch.Tensor, codes: torch.Tensor, unit: str) -> list[str]:
    unknown = (codes == UNKNOWN).numpy()
    if not unknown.any():
        return []
    found = np.zeros(len(codes), dtype=np.int64)
    for block in indices.split(BLOCK_VALUES):
        found += np.bincount(block.numpy().astype(np.int64), minlength=len(codes))
    values = [panel.dictionaries[column][place] for place in np.flatnonzero(unknown & (found > 0))]
    if not values:
        return []
    many = "" if len(values) == 1 else "s"
    count = int(found[unknown].sum())
    where = f"{count:,} {unit}{'s' if unit == 'row' and count > 1 else ''}"
    return [
        f"column '{column}' holds {len(values)} value{many} that no training row has, read as unknown in "
        f"{where}: {some_of(values)}."
    ]
