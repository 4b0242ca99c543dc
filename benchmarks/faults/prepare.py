"""What children do before their command: called by name, since the child of a fork is told in words."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto

from qat_tft.data.reading import parquet
from qat_tft.export.build import run_export
from qat_tft.export.build.contract import RawForecaster
from qat_tft.export.metadata import ModelMetadata


def keep_graphs() -> None:
    """Trace each graph once for all children: tracing touches no file and takes far longer than what does."""
    trace = run_export.build_graph

    def kept(forecaster: RawForecaster, metadata: ModelMetadata) -> ModelProto:
        path = Path.cwd() / f"graph.{metadata.kind}.onnx"
        if not path.exists():
            onnx.save(trace(forecaster, metadata), path)
        return onnx.load(path)

    run_export.build_graph = kept


def call_all_rows_large() -> None:
    """Keep the rows of any file in a cache."""
    parquet.MAPPED_BYTES = 1
