"""What a CPU does to 8-bit products, and a file for another machine that is checked in spite of it."""

import numpy as np
import onnx
import pytest

from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify import check
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.machine import cpu_saturates, in_floating_point
from qat_tft.runs.folder import RunFolder

SAME = 1e-5  # of the largest forecast: sums of the same whole numbers, scaled in another order


def forecasts(path, run: RunFolder) -> np.ndarray:
    windows = run.load_check_windows()
    session = ForecastSession(path, optimized=False, threads=1)
    return session.forecast(window_inputs(windows, slice(None), session.metadata))


def test_the_answer_is_asked_for_once_and_is_a_fact_of_this_machine() -> None:
    assert cpu_saturates() in (True, False)
    assert cpu_saturates() is cpu_saturates()


def test_products_of_integers_become_products_of_the_same_numbers_in_floating_point(run_for, tmp_path) -> None:
    run = run_for("x86")
    model = onnx.load(run.onnx_file("int8"))
    assert any(product.integer for product in GraphReader(model).products)
    floats = in_floating_point(model)
    assert "MatMulInteger" not in {node.op_type for node in floats.graph.node}
    onnx.checker.check_model(floats)
    onnx.save(floats, tmp_path / "floats.onnx")
    ours, theirs = forecasts(tmp_path / "floats.onnx", run), forecasts(run.onnx_file("int8"), run)
    assert np.abs(ours - theirs).max() <= SAME * np.abs(theirs).max()


def test_a_file_that_would_saturate_here_is_checked_without_optimizations_and_says_why(
    run_for, damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = damaged(run_for("tensorrt"))
    monkeypatch.setattr(check, "cpu_saturates", lambda: True)
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert "for another machine" in report.caveat
    assert list(report.found.sqnr_db) == ["unoptimized"]
    assert report.found.optimization_steps is None
    assert report.found.tensors.equal
    assert report.found.layers == ()
    assert [reason for reason in report.reasons if "file" not in reason] == []


def test_a_file_whose_pairs_fit_is_checked_as_ever_there(run_for, damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    run = damaged(run_for("x86"))
    monkeypatch.setattr(check, "cpu_saturates", lambda: True)
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert report.caveat == ""
    assert set(report.found.sqnr_db) == {"optimized", "unoptimized"}
