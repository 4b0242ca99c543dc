"""A whole run on a GPU: trained there, exported and checked on the CPU from its folder alone.

tests/pipeline does the same on the CPU, so this one is for the GPU alone.
"""

from __future__ import annotations

import pytest
import torch

from qat_tft.config.run import RunConfig
from qat_tft.export.build.run_export import export_run
from qat_tft.export.verify.check import check_model
from qat_tft.training.job import train


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_a_model_trained_on_a_gpu_is_exported_and_proven_on_the_cpu(tmp_path):
    values = {
        "model": {"history": 8, "horizon": 2, "hidden": 8, "heads": 2, "knots": 5},
        "training": {"epochs": 1, "batches_per_epoch": 2, "batch_size": 8, "device": "cuda"},
        "quantization": {"use_qat": True, "qat_epochs": 1, "calibration_batches": 2, "products": "integer"},
    }
    values["training"] |= {"use_gradient_checkpointing": True, "validation_windows": 16, "test_windows": 16}
    run = train(RunConfig.checked(values, where="the test"), runs_dir=tmp_path, name="trained").folder
    assert run.load_config().model.selection_chunk == 128
    export_run(run, int8=True)
    for kind in ("fp32", "int8"):
        report = check_model(run.onnx_file(kind), seconds=0.0)
        assert report.passed, report.reasons
