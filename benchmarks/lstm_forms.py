"""Time of one LSTM with 8-bit weights in onnxruntime, in every form that a file can hold it in, against FP32.

    python benchmarks/lstm_forms.py

One thread; the forms are timed interleaved and the fastest of many calls counts. Decision 030 quotes the output.
"""

import time

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper

from qat_tft.export.build.passes.lstm_weights import compute_on_integers, dequantize_at_load

SHAPES = ((50, 1, 128), (50, 32, 128), (192, 64, 160), (192, 1, 32), (192, 32, 32))  # time, batch, hidden
ROUNDS = 30


def integer_lstm(time_steps: int, hidden: int) -> ModelProto:
    """An LSTM as the integer model exports it: rounded input, 8-bit weights behind a DequantizeLinear."""
    random = np.random.default_rng(0)
    values = {"scale": np.float32(0.03), "zero": np.uint8(128)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["levels"]),
        helper.make_node("DequantizeLinear", ["levels", "scale", "zero"], ["rounded"]),
        helper.make_node("Transpose", ["rounded"], ["steps"], perm=[1, 0, 2]),
    ]
    for name in ("W", "R"):
        values |= {
            f"{name}.codes": random.integers(-64, 64, (1, 4 * hidden, hidden)).astype(np.int8),
            f"{name}.scale": random.uniform(0.001, 0.002, 4 * hidden).astype(np.float32),
            f"{name}.zero": np.zeros(4 * hidden, np.int8),
        }
        operands = [f"{name}.{part}" for part in ("codes", "scale", "zero")]
        nodes.append(helper.make_node("DequantizeLinear", operands, [name], axis=1))
    nodes.append(helper.make_node("LSTM", ["steps", "W", "R"], ["y"], hidden_size=hidden))
    graph = helper.make_graph(
        nodes,
        "recurrence",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", time_steps, hidden])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [time_steps, 1, "batch", hidden])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def float_lstm(model: ModelProto) -> ModelProto:
    """The same LSTM without rounding, its weights in floating point."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = [
        numpy_helper.from_array(values[f"{name}.codes"] * values[f"{name}.scale"].reshape(1, -1, 1), name)
        for name in ("W", "R")
    ]
    nodes = [node for node in model.graph.node if node.op_type in ("Transpose", "LSTM")]
    nodes[0].input[0] = "x"
    graph = helper.make_graph(nodes, "recurrence", model.graph.input, model.graph.output, weights)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)


def forms(time_steps: int, hidden: int) -> dict[str, ModelProto]:
    """Every form by name."""
    models = {name: integer_lstm(time_steps, hidden) for name in ("DequantizeLinear", "Cast and Mul", "dynamic")}
    dequantize_at_load(models["Cast and Mul"])
    compute_on_integers(models["dynamic"])
    return {"FP32": float_lstm(integer_lstm(time_steps, hidden)), **models}


def session(model: ModelProto) -> ort.InferenceSession:
    """A session of one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Print a line per shape."""
    names = list(forms(1, 4))
    print("time x batch x hidden" + "".join(f"{name:>18}" for name in names) + "   (ms)")
    for time_steps, batch, hidden in SHAPES:
        sessions = {name: session(model) for name, model in forms(time_steps, hidden).items()}
        x = np.random.default_rng(1).normal(size=(batch, time_steps, hidden)).astype(np.float32)
        best = dict.fromkeys(names, float("inf"))
        for _ in range(ROUNDS):
            for name, runner in sessions.items():
                start = time.perf_counter()
                runner.run(None, {"x": x})
                best[name] = min(best[name], time.perf_counter() - start)
        shape = f"{time_steps} x {batch} x {hidden}"
        print(f"{shape:21}" + "".join(f"{1000 * best[name]:18.2f}" for name in names))


if __name__ == "__main__":
    main()
