"""Files with weights of 4 and 2 bits: exported, proven against their twin in 8 bits, and refused where they must be."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from qat_tft.cli.app import main
from qat_tft.errors import ExportError, OnnxFileError
from qat_tft.export.build.passes.pack_codes import packed_tensor
from qat_tft.export.build.run_export import export_run, plan_int8, write_plans
from qat_tft.export.graph_edit import PACKED_TYPES, value_of
from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import METADATA_KEY
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.tensors.against_run import tensors_against_run
from qat_tft.export.verify.twin import compare_with_twin
from qat_tft.runs.folder import RunFolder

FORMS = [(4, "integer"), (2, "float")]
FIRST = {4: "1.23", 2: "1.24"}


@pytest.fixture(params=FORMS, ids=lambda form: f"{form[0]} bits, {form[1]} products")
def run(request, run_for) -> RunFolder:
    bits, products = request.param
    return run_for("x86", products=products, weight_bits=bits)


def inputs_of(run: RunFolder, rows: int = 20) -> dict[str, np.ndarray]:
    metadata = ForecastSession(run.integer_file).metadata
    return window_inputs(run.load_check_windows(), torch.arange(rows), metadata)


def test_the_file_has_the_name_of_its_bits_and_every_layer_but_the_head_has_them(run: RunFolder) -> None:
    bits = run.weight_bits
    assert run.integer_file.name == f"model.int{bits}.onnx"
    metadata = ForecastSession(run.integer_file).metadata
    assert (metadata.bits, metadata.packed, metadata.needs_onnxruntime) == (bits, True, FIRST[bits])
    tensors = {tensor.name: tensor for tensor in onnx.load(run.integer_file).graph.initializer}
    packed = {name for name, tensor in tensors.items() if tensor.data_type in PACKED_TYPES}
    graph = GraphReader(onnx.load(run.integer_file))
    of_layers = {name for product in graph.products if product.layer in metadata.low_bits for name in product.weights}
    assert packed == of_layers
    assert len(packed) > 10
    lstm = [tensors[name].data_type for name in packed if ".cell." in name]
    assert set(lstm) == {TensorProto.INT4}, "an LSTM has at least four bits"


def test_its_check_passes_and_names_the_twin_and_the_runtime(run: RunFolder, damaged, capsys) -> None:
    run = damaged(run)
    assert main(["check", str(run.integer_file)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    bits = run.weight_bits
    assert f"weights have as few as {bits} bits: the file needs onnxruntime {FIRST[bits]} or later" in printed
    assert f"INT{bits} / FP32" in printed
    report = run.load_check()
    twin = report["twin"]
    assert (twin["differing"], twin["packed"], twin["missing_products"]) == (0, 0, 0)
    assert twin["values"] > 100
    assert (report["weight_bits"], report["tensors"]["differing"]) == (bits, [])
    assert report["saturating_products"] == 0
    assert {one["name"]: one["skipped"] for one in report["runtimes"]}["onnx reference evaluator"] == ""


def test_one_code_more_or_less_and_the_least_change_of_a_scale_are_seen(run: RunFolder) -> None:
    model, metadata = onnx.load(run.integer_file), ForecastSession(run.integer_file).metadata
    assert tensors_against_run(GraphReader(model), metadata, run).equal
    unseen, damages = [], 0
    for tensor in model.graph.initializer:
        if tensor.data_type not in PACKED_TYPES:
            continue
        sound, codes = tensor.SerializeToString(), value_of(tensor).copy()
        codes.reshape(-1)[len(codes.reshape(-1)) // 2] ^= 1
        tensor.CopyFrom(packed_tensor(tensor.name, codes, 4 if tensor.data_type == TensorProto.INT4 else 2))
        if tensors_against_run(GraphReader(model), metadata, run).equal:
            unseen.append(tensor.name)
        tensor.ParseFromString(sound)
        damages += 1
    assert unseen == []
    assert damages > 10


def test_a_packed_tensor_that_is_dequantized_itself_is_seen(run_for) -> None:
    run = run_for("x86", products="float", weight_bits=2)
    model = onnx.load(run.integer_file)
    four = {tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT4}
    place, cast = next((place, node) for place, node in enumerate(model.graph.node) if node.input[:1][0] in four)
    assert cast.op_type == "Cast"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1.0), "one"))
    dequantize = helper.make_node("DequantizeLinear", [cast.input[0], "one"], [cast.output[0]])
    model.graph.node.remove(cast)
    model.graph.node.insert(place, dequantize)
    assert compare_with_twin(model, inputs_of(run), threads=1).packed > 0


@pytest.mark.parametrize("run", FORMS[1:], ids=["2 bits"], indirect=True)
def test_the_file_in_8_bits_runs_everywhere_and_forecasts_the_same_bits(run: RunFolder, damaged) -> None:
    run = damaged(run)
    write_plans(run, [plan_int8(run, store="int8")])
    path = run.onnx_file("int8")
    metadata = ForecastSession(path).metadata
    assert (metadata.packed, metadata.bits, metadata.needs_onnxruntime) == (False, run.weight_bits, "1.18")
    model = onnx.load(path)
    assert not any(tensor.data_type in PACKED_TYPES for tensor in model.graph.initializer)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [20]
    inputs = inputs_of(run)
    assert np.array_equal(ForecastSession(path).forecast(inputs), ForecastSession(run.integer_file).forecast(inputs))
    assert path.stat().st_size > run.integer_file.stat().st_size
    report = check_model(path, seconds=0.0)
    assert report.passed, report.reasons


def test_an_older_onnxruntime_is_told_what_to_do(run: RunFolder, monkeypatch) -> None:
    older = {4: "1.22.1", 2: "1.23.2"}[run.weight_bits]
    monkeypatch.setattr(ort, "__version__", older)
    with pytest.raises(
        OnnxFileError, match=rf"needs onnxruntime {FIRST[run.weight_bits]} or later, and {older}"
    ) as told:
        ForecastSession(run.integer_file)
    assert "--store int8" in str(told.value)
    ForecastSession(run.onnx_file("fp32"))


def test_other_bits_than_the_run_was_trained_with_are_refused(run: RunFolder, damaged) -> None:
    run = damaged(run)
    with pytest.raises(ExportError, match=f"trained with weights of {run.weight_bits} bits, not 8"):
        export_run(run, int8=True, weight_bits=8)
    model = onnx.load(run.integer_file)
    (entry,) = (entry for entry in model.metadata_props if entry.key == METADATA_KEY)
    entry.value = entry.value.replace(f'"head": {run.weight_bits}', "").replace(
        '"low_bits": {', '"low_bits": {"head": 4, '
    )
    onnx.save(model, run.integer_file)
    report = check_model(run.integer_file, seconds=0.0)
    assert any("quantization.weight_bits" in reason for reason in report.reasons)


def test_tensorrt_has_eight_bits_only(run_for, capsys, tmp_path: Path) -> None:
    run = run_for("x86", products="float", weight_bits=2)
    with pytest.raises(ExportError, match="'tensorrt' has no weights of 2 bits: TensorRT has not been shown"):
        plan_int8(run, target="tensorrt")
    words = ["train", "--use-qat", "--weight-bits", "4", "--target-profile", "tensorrt", "--runs-dir", str(tmp_path)]
    assert main(words) == 2
    assert "weights of 8 bits only" in capsys.readouterr().err
