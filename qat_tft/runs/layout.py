"""The names of a run's files: what a run folder holds."""

from typing import Literal

LATEST = "latest"
"""File beside the run folders that names the newest finished run."""
UNFINISHED = ".unfinished"
"""What the name of a run folder ends with while the run trains."""

WeightsKind = Literal["fp32", "qat"]
FileKind = Literal["fp32", "int8"]

CONFIG = "config.toml"
SCHEMA = "schema.toml"
PREPROCESSING = "preprocessing.json"
WEIGHTS: dict[WeightsKind, str] = {"fp32": "fp32.safetensors", "qat": "qat.safetensors"}
STATE = "state.safetensors"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
CHECK_WINDOWS = "check_windows.safetensors"
RESULTS = "results.json"
ONNX: dict[FileKind, str] = {"fp32": "model.fp32.onnx", "int8": "model.int8.onnx"}
CHECK = "check.json"
PICTURE = "forecast.png"

TITLES = {
    WEIGHTS["fp32"]: "FP32 weights",
    WEIGHTS["qat"]: "QAT weights",
    ONNX["fp32"]: "FP32 ONNX file",
    ONNX["int8"]: "INT8 ONNX file",
}
"""What a report calls the files that a run is about."""
