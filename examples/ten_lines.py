"""Run an exported file with onnxruntime and numpy alone, in ten lines: `python ten_lines.py MODEL.onnx`."""

import sys

import numpy as np
import onnxruntime as ort

path = sys.argv[1] if len(sys.argv) == 2 else sys.exit("usage: python ten_lines.py MODEL.onnx")
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
inputs = {node.name: np.zeros((1, *node.shape[1:]), types[node.type]) for node in session.get_inputs()}
inputs["historical_real"][..., 0] = 10 + np.sin(np.arange(inputs["historical_real"].shape[1]))  # the target, raw
(quantiles,) = session.run(["quantiles"], inputs)  # raw as well: [batch, horizon, quantiles]
print(quantiles[0])
