"""A loss that is not finite is explained by the columns that made it so."""

import torch

from qat_tft.evaluation.nonfinite import explain_batch
from qat_tft.schema import Columns, Schema

SCHEMA = Schema(
    time="t",
    target="y",
    static=Columns(real=("size",)),
    observed=Columns(real=("wind",), category=("kind",)),
    known=Columns(real=("price",)),
)


def batch() -> tuple[list[torch.Tensor], torch.Tensor]:
    # historical: y, wind, price, kind
    return [torch.ones(2, 1), torch.ones(2, 5, 4), torch.ones(2, 3, 1)], torch.ones(2, 3)


def test_non_finite_columns_are_named_before_extreme_ones():
    inputs, target = batch()
    inputs[1][0, 0, 1] = torch.nan
    inputs[2][1, 2, 0] = 1e9
    assert explain_batch(SCHEMA, inputs, target) == "non-finite values in 'wind'"


def test_extreme_columns_are_named_with_their_size():
    inputs, target = batch()
    inputs[2][1, 2, 0] = -1e9
    assert "'price' (1e+09)" in explain_batch(SCHEMA, inputs, target)


def test_the_target_to_come_counts_as_the_target():
    inputs, target = batch()
    target[0, 0] = torch.inf
    assert explain_batch(SCHEMA, inputs, target) == "non-finite values in 'y'"


def test_category_codes_are_never_extreme():
    inputs, target = batch()
    inputs[1][..., 3] = 50_000
    assert "weights have diverged" in explain_batch(SCHEMA, inputs, target)


def test_a_missing_target_explains_nothing():
    inputs, target = batch()
    target[0, 0] = torch.nan
    assert "weights have diverged" in explain_batch(SCHEMA, inputs, target)
