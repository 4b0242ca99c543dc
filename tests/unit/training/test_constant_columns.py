"""Columns that never change in the training rows are refused before a run begins."""

import dataclasses

import pytest
import torch

from qat_tft.errors import DataError
from qat_tft.runs.data import RunData
from qat_tft.training.constant_columns import refuse_constant_columns


def with_column(data: RunData, place: int, training: float, later: float) -> RunData:
    """The same rows with one real column replaced: one value in the training rows, another after them."""
    values = data.panel.values.clone()
    rows = torch.arange(data.panel.rows)
    values[:, place] = torch.where(rows < data.training_ends[data.panel.series_at(rows)], training, later)
    return dataclasses.replace(data, panel=dataclasses.replace(data.panel, values=values))


def test_columns_that_change_are_accepted(data):
    refuse_constant_columns(data)


@pytest.mark.parametrize("place", [0, 1], ids=["target", "covariate"])
def test_a_column_of_one_value_is_refused_by_name_whatever_comes_after_training(data, place):
    name = data.schema.group("historical").real[place]
    with pytest.raises(DataError, match=f"real columns with the same value in every training row: {name}\\. Allowed"):
        refuse_constant_columns(with_column(data, place, 7.0, 9.0))


def test_missing_values_do_not_make_a_constant_column_change(data):
    constant = with_column(data, 1, 7.0, 9.0)
    constant.panel.values[::3, 1] = torch.nan
    with pytest.raises(DataError, match="real columns with the same value"):
        refuse_constant_columns(constant)


def test_a_derived_column_may_be_constant(data):
    name = data.schema.group("historical").real[1]
    constant = with_column(data, 1, 7.0, 9.0)
    refuse_constant_columns(dataclasses.replace(constant, declared=constant.declared.without({name})))
