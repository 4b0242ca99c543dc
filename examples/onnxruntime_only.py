"""Run an exported file with onnxruntime and numpy alone: no torch, no qat-tft.

    python onnxruntime_only.py MODEL.onnx

The file says itself what goes in (names, shapes and, under the metadata key `qat_tft`, the columns and their
vocabularies) and what comes out (the quantiles). All values are raw: scaling is inside the graph. Here the
history is made up, a sine wave in the target and zeros elsewhere; put your own rows in its place.
"""

import json
import sys

import numpy as np
import onnxruntime as ort


def columns_of(metadata: dict) -> dict[str, list[str]]:
    """Input name to the data columns along its last dimension, in order."""
    schema = metadata["schema"]
    static, observed, known = schema["static"], schema["observed"], schema["known"]
    return {
        "static_real": static["real"],
        "static_category": static["category"],
        "historical_real": [schema["target"], *observed["real"], *known["real"]],
        "historical_category": [*observed["category"], *known["category"]],
        "future_real": known["real"],
        "future_category": known["category"],
    }


def code(metadata: dict, column: str, value: str) -> int:
    """Code of a category: its place in the column's vocabulary counted from 1; 0 is a value never seen."""
    vocabulary = metadata["vocabularies"][column]
    return vocabulary.index(value) + 1 if value in vocabulary else 0


def made_up_inputs(session: ort.InferenceSession, metadata: dict, batch: int) -> dict[str, np.ndarray]:
    """A sine wave as the target's history; zeros and first categories elsewhere."""
    inputs = {}
    for node in session.get_inputs():
        shape = (batch, *node.shape[1:])
        dtype = np.float32 if node.type == "tensor(float)" else np.int64
        inputs[node.name] = np.zeros(shape, dtype)
        if node.name.endswith("_category"):
            for place, column in enumerate(columns_of(metadata)[node.name]):
                first = next(iter(metadata["vocabularies"][column]), "")
                inputs[node.name][..., place] = code(metadata, column, first)
    inputs["historical_real"][..., 0] = 10 + 5 * np.sin(np.arange(metadata["history"]) * 2 * np.pi / 24)
    return inputs


def main(path: str) -> None:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["qat_tft"])
    inputs = made_up_inputs(session, metadata, batch=1)
    # INT8 arithmetic hides a NaN: refuse it before it goes in.
    for name, values in inputs.items():
        if not np.isfinite(values).all():
            sys.exit(f"{name} holds NaN or infinity")
    (quantiles,) = session.run(["quantiles"], inputs)  # [batch, horizon, quantiles]
    print(f"{metadata['kind']} model of '{metadata['schema']['target']}', next {metadata['horizon']} steps")
    print("step  " + "  ".join(f"{f'P{100 * level:g}':>9}" for level in metadata["quantiles"]))
    for step, row in enumerate(quantiles[0], start=1):
        print(f"{step:4}  " + "  ".join(f"{value:9.3f}" for value in row))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python onnxruntime_only.py MODEL.onnx")
    main(sys.argv[1])
