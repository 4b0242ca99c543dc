"""The names of a run's files: what a run folder holds."""

from typing import Literal, get_args

from qat_tft.config.run import OWN_TABLE

LATEST = "latest"
"""File beside the run folders that names the newest finished run."""
UNFINISHED = ".unfinished"
"""What the name of a run folder ends with while the run trains."""

WeightsKind = Literal["fp32", "qat"]
FileKind = Literal["fp32", "int8", "int4", "int2"]

CONFIG = "config.toml"
SCHEMA = "schema.toml"
TABLE = OWN_TABLE
"""The data, where they were a table in memory."""
PREPROCESSING = "preprocessing.json"
WEIGHTS: dict[WeightsKind, str] = {"fp32": "fp32.safetensors", "qat": "qat.safetensors"}
STATE = "state.safetensors"
TEACHER = "teacher.scratch"
PAGE_SO_FAR = "report-so-far.html"
UNTIL_FINISHED = (STATE, TEACHER, PAGE_SO_FAR)
"""Files that a run needs no more once it is finished."""
LAUNCHER = "launcher.txt"
"""What tells the launcher that began the run from others, where one did: started again by it, a training goes on."""
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TRACKING = "tracking.json"
"""What each tracker calls the run."""
TRACKERS = "trackers"
"""Folder beside the run folders with the stores of trackers that hold many runs."""
BESIDE_RUNS = (LATEST, TRACKERS)
"""What stands beside the run folders, so that no run can be called so."""
MLFLOW = "mlflow.db"
TRACKIO = "trackio"
CHECK_WINDOWS = "check_windows.safetensors"
RESULTS = "results.json"
ONNX: dict[FileKind, str] = {kind: f"model.{kind}.onnx" for kind in get_args(FileKind)}
INTEGER: dict[int, FileKind] = {8: "int8", 4: "int4", 2: "int2"}
"""Fewest bits of a weight to the kind of the file that stores it so."""

CHECK = "check.json"
PICTURE = "forecast.png"
PAGE = "report.html"
COMPARISON = "compare.html"
"""Page beside the run folders that puts two of them side by side."""

TITLES = {
    WEIGHTS["fp32"]: "FP32 weights",
    WEIGHTS["qat"]: "QAT weights",
    ONNX["fp32"]: "FP32 ONNX file",
    **{ONNX[kind]: f"{kind.upper()} ONNX file" for kind in INTEGER.values()},
}
"""What a report calls the files that a run is about."""
