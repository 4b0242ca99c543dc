"""What a picture of a forecast shows of the history before it."""

import numpy as np
import torch

from qat_tft.evaluation.window_history import season_repeated, target_history
from qat_tft.schema import PRESENT, Columns, Schema

SCHEMA = Schema(time="t", target="y", observed=Columns(real=("wind",)))


def test_the_history_is_that_of_the_target():
    history = torch.arange(8.0).view(4, 2)
    assert target_history(SCHEMA, history).tolist() == [0, 2, 4, 6]


def test_padding_is_not_drawn_as_if_it_had_been_measured():
    history = torch.arange(12.0).view(4, 3)
    history[:, 2] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert target_history(SCHEMA.with_observed(PRESENT), history).tolist() == [6, 9]


def test_a_season_is_repeated_and_without_a_whole_one_the_last_value():
    history = np.array([1.0, 2.0, 3.0, 4.0])
    assert season_repeated(history, 5, 3).tolist() == [2, 3, 4, 2, 3]
    assert season_repeated(history, 3, 9).tolist() == [4, 4, 4]
