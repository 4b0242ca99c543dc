"""The damage that benchmarks/damage.py does is as small as it says."""

import numpy as np
import pytest

from qat_tft.export.verify.check_report import CheckReport
from qat_tft.export.verify.evidence import Evidence, FileFacts
from qat_tft.export.verify.tensors.comparison import TensorReport


@pytest.fixture
def script(benchmark_named):
    return benchmark_named("damage")


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.float32])
def test_one_element_moves_by_the_amount_and_stays_in_its_type(script, kind) -> None:
    value = np.array([[3, 7], [120, 5]], kind)
    moved = script.one_more(1)(value)
    assert moved.dtype == value.dtype
    assert np.abs(moved.astype(float) - value.astype(float)).sum() == 1
    assert (moved != value).sum() == 1


def test_factors_and_offsets_keep_the_type(script) -> None:
    value = np.array([1.0, 2.0], np.float32)
    assert script.times(1.5)(value).tolist() == [1.5, 3.0]
    assert script.plus(0.5)(value).dtype == np.float32


def test_a_row_says_which_look_noticed(script, tmp_path) -> None:
    found = Evidence(
        tensors=TensorReport(9, ("the tensor a differs",)), sqnr_db={"optimized": 41.0, "unoptimized": 90.0}
    )
    row = script._row("x", CheckReport(tmp_path, FileFacts("fp32"), found=found, rows=1))
    assert (row.damage, row.sqnr_db) == ("x", 41.0)
    assert (row.forecast, row.layers, row.tensors) == (True, False, True)
    sound = Evidence(sqnr_db={"optimized": 99.0}, batch_mates_change=0.0)
    row = script._row("none", CheckReport(tmp_path, FileFacts("fp32"), found=sound, rows=1))
    assert (row.forecast, row.layers, row.tensors) == (False, False, False)
