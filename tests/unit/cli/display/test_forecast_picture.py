"""What a picture of a forecast shows of the history before it."""

import torch

from qat_tft.cli.display.forecast_picture import target_history
from qat_tft.schema import PRESENT, Columns, Schema

SCHEMA = Schema(time="t", target="y", observed=Columns(real=("wind",)))


def test_the_history_is_that_of_the_target():
    history = torch.arange(8.0).view(4, 2)
    assert target_history(SCHEMA, history).tolist() == [0, 2, 4, 6]


def test_padding_is_not_drawn_as_if_it_had_been_measured():
    history = torch.arange(12.0).view(4, 3)
    history[:, 2] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert target_history(SCHEMA.with_observed(PRESENT), history).tolist() == [6, 9]
