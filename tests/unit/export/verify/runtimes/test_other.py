"""The file in other runtimes: compared where they know it, skipped with a reason where they do not."""

import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qat_tft.errors import OnnxFileError
from qat_tft.export.verify.runtimes.other import OtherRuntime, openvino, other_runtimes, reference

REFERENCE, OPENVINO = "onnx reference evaluator", "OpenVINO"
X = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 3, 2)}


def doubling(domain: str = "") -> onnx.ModelProto:
    """A graph that doubles its input, if need be with an operator of another domain."""
    nodes = [helper.make_node("Add", ["x", "x"], ["quantiles"])]
    opsets = [helper.make_opsetid("", 20)]
    if domain:
        nodes = [helper.make_node("BiasGelu", ["x", "x"], ["quantiles"], domain=domain)]
        opsets.append(helper.make_opsetid(domain, 1))
    shape = ["batch", 3, 2]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "quantiles")]
    graph = helper.make_graph(nodes, "doubling", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: onnx.ModelProto, expected: np.ndarray | None = None) -> dict[str, OtherRuntime]:
    wanted = 2 * X["x"] if expected is None else expected
    return {runtime.name: runtime for runtime in other_runtimes(model, X, wanted, lambda quantiles: quantiles)}


def test_the_reference_evaluator_confirms_equal_values_and_measures_others():
    exact, off = run(doubling())[REFERENCE], run(doubling(), 2 * X["x"] * 1.1)[REFERENCE]
    assert (exact.sqnr_db, exact.skipped) == (200.0, "")
    assert exact.how == f"onnx {onnx.__version__}"
    assert off.sqnr_db == pytest.approx(20 * np.log10(11), abs=0.01)


def test_a_file_with_operators_of_another_domain_is_skipped_everywhere_by_their_names():
    for runtime in run(doubling("com.microsoft")).values():
        assert "com.microsoft:BiasGelu" in runtime.skipped
        assert runtime.sqnr_db is None


def test_a_file_that_a_runtime_cannot_run_is_refused():
    model = doubling()
    del model.graph.node[0].input[1]
    with pytest.raises(OnnxFileError, match=r"the onnx reference evaluator cannot run this file.*export it again"):
        run(model)


def test_a_file_with_too_many_weights_is_skipped_by_the_reference_evaluator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reference, "_MOST_WEIGHTS", 5)
    model = doubling()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(6, np.float32), "w"))
    assert run(model)[REFERENCE].skipped == "6 weights are too many for it, above 5"


def test_without_openvino_it_is_skipped_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openvino, "find_spec", lambda name: None)
    found = run(doubling())[OPENVINO]
    assert "pip install 'qat-tft[openvino]'" in found.skipped
    assert (found.sqnr_db, found.how) == (None, "")


class Refusing:
    """Stands for OpenVINO's Core: it refuses integers where it is told to, and doubles its input."""

    def __init__(self, refuses: bool) -> None:
        self.refuses, self.settings = refuses, []

    def __call__(self) -> "Refusing":
        return self

    def read_model(self, content: bytes) -> onnx.ModelProto:
        return onnx.load_from_string(content)

    def compile_model(self, model: onnx.ModelProto, device: str, settings: dict[str, str]) -> Callable[..., list]:
        self.settings.append(settings)
        if self.refuses and "LP_TRANSFORMS_MODE" not in settings:
            raise RuntimeError("cannot be broadcasted")
        return lambda inputs: [inputs["x"] * 2]


@pytest.mark.parametrize(("refuses", "how"), [(False, "on integers where it can"), (True, "in floating point")])
def test_what_openvino_refuses_to_compute_on_integers_is_computed_in_floating_point_and_said(
    refuses: bool, how: str, monkeypatch: pytest.MonkeyPatch
):
    core = Refusing(refuses)
    module = type(sys)("openvino")
    module.Core, module.__version__ = core, "2026.4.1-1-abc"
    monkeypatch.setitem(sys.modules, "openvino", module)
    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    found = run(doubling())[OPENVINO]
    assert found.sqnr_db == 200.0
    assert found.how.startswith(f"2026.4.1, products {how}")
    assert all(settings["INFERENCE_PRECISION_HINT"] == "f32" for settings in core.settings)


@pytest.mark.skipif(find_spec("openvino") is None, reason="the extra openvino is not installed")
def test_openvino_computes_the_same():
    assert run(doubling())[OPENVINO].sqnr_db > 100
