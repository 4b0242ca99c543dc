"""Quantization-aware training of the Temporal Fusion Transformer, with a proven INT8 ONNX export.

The public names below are imported when they are first used, so that `import qat_tft` alone does not load torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qat_tft.checkpointing.recompute import CheckpointRunner, runner_for
    from qat_tft.config import RunConfig
    from qat_tft.data.preprocessing import Preprocessing
    from qat_tft.data.reading.parquet import read_panel
    from qat_tft.data.sample.samples import embedded_temperatures, write_sample
    from qat_tft.data.split import Split
    from qat_tft.data.windows import Windows
    from qat_tft.errors import CheckFailed, QatTftError, UserError
    from qat_tft.export.check import check_model
    from qat_tft.export.graph import export_run
    from qat_tft.export.session import Forecaster
    from qat_tft.model.loss import q_risk, quantile_loss
    from qat_tft.model.tft import Forecast, TemporalFusionTransformer
    from qat_tft.quantization.calibrate import calibrate
    from qat_tft.quantization.prepare import QATTemporalFusionTransformer
    from qat_tft.quantization.scheme import scheme_for
    from qat_tft.schema import Schema
    from qat_tft.training.job import resume, train
    from qat_tft.training.run_folder import RunFolder

_HOMES = {
    "CheckFailed": "errors",
    "CheckpointRunner": "checkpointing.recompute",
    "Forecast": "model.tft",
    "Forecaster": "export.session",
    "Preprocessing": "data.preprocessing",
    "QATTemporalFusionTransformer": "quantization.prepare",
    "QatTftError": "errors",
    "RunConfig": "config",
    "RunFolder": "training.run_folder",
    "Schema": "schema",
    "Split": "data.split",
    "TemporalFusionTransformer": "model.tft",
    "UserError": "errors",
    "Windows": "data.windows",
    "calibrate": "quantization.calibrate",
    "check_model": "export.check",
    "embedded_temperatures": "data.samples",
    "export_run": "export.graph",
    "q_risk": "model.loss",
    "quantile_loss": "model.loss",
    "read_panel": "data.parquet",
    "resume": "training.job",
    "runner_for": "checkpointing.recompute",
    "scheme_for": "quantization.scheme",
    "train": "training.job",
    "write_sample": "data.samples",
}

__version__ = version("qat-tft")
__all__ = [
    "CheckFailed",
    "CheckpointRunner",
    "Forecast",
    "Forecaster",
    "Preprocessing",
    "QATTemporalFusionTransformer",
    "QatTftError",
    "RunConfig",
    "RunFolder",
    "Schema",
    "Split",
    "TemporalFusionTransformer",
    "UserError",
    "Windows",
    "calibrate",
    "check_model",
    "embedded_temperatures",
    "export_run",
    "q_risk",
    "quantile_loss",
    "read_panel",
    "resume",
    "runner_for",
    "scheme_for",
    "train",
    "write_sample",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qat_tft' has no attribute {name!r}")
    return getattr(import_module(f"qat_tft.{_HOMES[name]}"), name)
