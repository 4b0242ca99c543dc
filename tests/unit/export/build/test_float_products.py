"""INT8 files with products in floating point: made of the FP32 file's kernels, and proven code by code."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from qat_tft.cli.app import main
from qat_tft.errors import ExportError
from qat_tft.export.build import run_export
from qat_tft.export.build.export_report import GRAPH_IS_LARGER
from qat_tft.export.build.graph_rules import verify_explicit_pairs
from qat_tft.export.build.run_export import plan_fp32, plan_int8, write_plans
from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.layers import compared_layers
from qat_tft.export.verify.tensors.against_run import tensors_against_run
from qat_tft.quantization.products import INTEGER_STORAGE
from qat_tft.runs.folder import RunFolder

EXACT_DB = 110.0  # the same products of the same numbers: single precision alone


@pytest.fixture
def run(run_for) -> RunFolder:
    return run_for("x86", products="float")


def kernels(path: Path, folder: Path) -> Counter[str]:
    """What onnxruntime runs of a file once it has loaded it."""
    ForecastSession(path, threads=1, optimized_graph=folder / "optimized.onnx")
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


def test_once_loaded_it_is_the_fp32_file(run: RunFolder, tmp_path: Path) -> None:
    """What is left to do at a call is what the FP32 file does, with the same kernels and no more of them."""
    int8, fp32 = (kernels(run.onnx_file(kind), tmp_path) for kind in ("int8", "fp32"))
    assert int8.keys() - fp32.keys() <= {"FusedGemm"}, "the sigmoid of a gate in its product"
    assert int8.total() <= 1.02 * fp32.total(), "a reshape more where a weight has lost its first axis"
    assert int8["MatMul"] > 10


def test_every_weight_matrix_is_stored_as_integers(run: RunFolder) -> None:
    graph = GraphReader(onnx.load(run.onnx_file("int8")))
    model = run.load_qat_model()
    layers = model.roundings().keys() - model.tables().keys()
    assert layers <= {product.layer for product in graph.products}
    weights = [name for product in graph.products if product.layer in layers for name in product.weights]
    assert {graph.constants[name].dtype for name in weights} == {np.dtype("int8")}
    assert not any(product.integer for product in graph.products)
    assert "QuantizeLinear" not in {node.op_type for node in graph.model.graph.node}


def test_its_check_proves_it_and_tells_what_it_is(run: RunFolder, damaged, capsys) -> None:
    run = damaged(run)
    assert main(["check", str(run.onnx_file("int8"))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert INTEGER_STORAGE in printed
    report = run.load_check()
    assert report["products"] == "float"
    assert min(report["sqnr_db"].values()) > EXACT_DB
    assert (report["integer_share"], report["integer_products"], report["saturating_products"]) == (0.0, 0, 0)
    assert report["tensors"]["differing"] == []
    assert {layer["name"] for layer in report["layers"]} == set(compared_layers(run.load_qat_model()))
    assert report["layer_max_steps"] < 0.01


def test_a_larger_file_is_a_note_and_no_refusal(run_for, damaged, monkeypatch) -> None:
    run = damaged(run_for("x86", products="float"))
    graphs = {kind: onnx.load(run.onnx_file(kind)) for kind in ("fp32", "int8")}
    graphs["int8"].metadata_props[0].value += " " * 200_000  # more than its weights save
    monkeypatch.setattr(run_export, "_verified", lambda plan, scaling: graphs[plan.metadata.kind])
    stages = []
    result = write_plans(run, [plan_fp32(run), plan_int8(run)], lambda *stage: stages.append(stage))
    assert stages == [("tracing model.fp32.onnx", 0, 3), ("tracing model.int8.onnx", 1, 3), ("writing", 2, 3)]
    sizes = {file.kind: file.bytes for file in result.files}
    assert sizes["int8"] > sizes["fp32"]
    assert any(GRAPH_IS_LARGER in str(part) for part in result.tables())
    stages.clear()
    report = check_model(run.onnx_file("int8"), seconds=0.0, told=lambda *stage: stages.append(stage))
    assert report.passed, report.reasons
    assert [(done, total) for _, done, total in stages] == [(done, 6) for done in range(6)]
    assert report.found.file_ratio > 1
    assert any(GRAPH_IS_LARGER in str(part) for part in report.tables())


def test_one_code_more_or_less_is_seen_in_every_layer(run: RunFolder) -> None:
    """So is the least change of a scale: single codes hardly move a forecast."""
    model = onnx.load(run.onnx_file("int8"))
    metadata = ForecastSession(run.onnx_file("int8")).metadata
    assert tensors_against_run(GraphReader(model), metadata, run).equal
    unseen, damages = [], 0
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        is_weight = tensor.data_type == TensorProto.INT8 and value.ndim > 1
        if not is_weight and not tensor.name.endswith((".scales", ".half0", ".half1")):
            continue
        sound, changed = tensor.SerializeToString(), value.copy().reshape(-1)
        changed[-1] = np.nextafter(changed[-1], np.float32(9)) if value.dtype.kind == "f" else changed[-1] ^ 1
        tensor.CopyFrom(numpy_helper.from_array(changed.reshape(value.shape), tensor.name))
        if tensors_against_run(GraphReader(model), metadata, run).equal:
            unseen.append(tensor.name)
        tensor.ParseFromString(sound)
        damages += 1
    assert unseen == []
    assert damages > 60


def test_a_file_for_tensorrt_keeps_its_pairs(run_for) -> None:
    run = run_for("tensorrt", products="float")
    model = onnx.load(run.onnx_file("int8"))
    verify_explicit_pairs(model)
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["DequantizeLinear"] >= len(run.load_qat_model().roundings())
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert report.passed, report.reasons
    assert min(report.found.sqnr_db.values()) > EXACT_DB


def test_an_lstm_on_integers_is_refused_before_anything_is_traced(run: RunFolder) -> None:
    with pytest.raises(ExportError, match=r"integer storage.*--products integer"):
        plan_int8(run, lstm="dynamic")


def test_its_codes_fit_every_target(run: RunFolder) -> None:
    """No code is multiplied by another, so nothing can saturate."""
    assert [plan_int8(run, target).metadata.products for target in ("x86-vnni", "portable")] == ["float"] * 2


def test_a_file_in_the_other_form_is_not_that_of_the_run(run: RunFolder, damaged) -> None:
    run = damaged(run)
    run.write_config(run.load_config().with_products("integer"))
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert any("quantization.products" in reason for reason in report.reasons)
