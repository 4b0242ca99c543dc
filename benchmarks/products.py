"""Time of a forecast with products on integers and in floating point, against the FP32 file, by hidden size.

    python benchmarks/products.py --hidden 16,32,64,128

The model has the shape of hourly data with a calendar: 7 observed and 4 known real columns, 168 steps of history, 24 of
horizon; its weights are random, as time does not depend on them. One thread; files are timed in turn. What counts is
the time of the process on its processor, from which other work on the machine takes nothing. Decision 039 quotes the
output.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

from qat_tft.config.model import ModelConfig
from qat_tft.data.scaling import Affine, Scaling
from qat_tft.export.build.contract import RawForecaster
from qat_tft.export.build.graph import build_graph
from qat_tft.export.inference.session import session_options
from qat_tft.export.metadata import ModelMetadata
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.integer import integer_model
from qat_tft.runs.build import build_qat_model, model_of_sizes
from qat_tft.schema import Columns, GroupSize, Schema

TARGET = "x86"
BATCHES = (1, 32)
SECONDS = 10.0
OBSERVED, KNOWN = tuple(f"load{number}" for number in range(6)), tuple(f"calendar{number}" for number in range(4))
SCHEMA = Schema(time="time", target="y", observed=Columns(real=OBSERVED), known=Columns(real=KNOWN))
SIZES = GroupSize(0, ()), GroupSize(1 + len(OBSERVED) + len(KNOWN), ()), GroupSize(len(KNOWN), ())


def files(shape: ModelConfig) -> dict[str, bytes]:
    """The FP32 file and the INT8 file of each form, of the same weights."""
    torch.manual_seed(0)
    model = model_of_sizes(shape, SIZES).eval()
    made = {"fp32": _file(model.folded(), shape, {"kind": "fp32"})}
    steps = (8,), (8, shape.history), (8, shape.horizon)
    inputs = tuple(torch.randn(*lead, size.total) for lead, size in zip(steps, SIZES, strict=True))
    for products in ("integer", "float"):
        qat = build_qat_model(model, TARGET, products=products).eval()
        calibrate(qat, [inputs])
        made[products] = _file(integer_model(qat), shape, {"kind": "int8", "target": TARGET, "products": products})
    return made


def medians(made: dict[str, bytes], batch: int, seconds: float) -> dict[str, float]:
    """Milliseconds of processor time of each file for a batch."""
    runs = {name: _forecast(content, batch) for name, content in made.items()}
    spent: dict[str, list[int]] = {name: [] for name in runs}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, run in runs.items():
            start = time.process_time_ns()
            run()
            spent[name].append(time.process_time_ns() - start)
    return {name: statistics.median(times) / 1e6 for name, times in spent.items()}


def _file(model: nn.Module, shape: ModelConfig, described: dict[str, str]) -> bytes:
    metadata = ModelMetadata(
        schema=SCHEMA,
        vocabularies={},
        series=None,
        quantiles=shape.quantiles,
        history=shape.history,
        horizon=shape.horizon,
        **described,  # type: ignore[arg-type]
    )
    scaling = Scaling(*(Affine(torch.zeros(1, size.total), torch.ones(1, size.total)) for size in SIZES))
    return build_graph(RawForecaster(model, scaling, metadata).eval(), metadata).SerializeToString()


def _forecast(content: bytes, batch: int) -> Callable[[], object]:
    session = ort.InferenceSession(
        content, session_options(optimized=True, threads=1), providers=["CPUExecutionProvider"]
    )
    random = np.random.default_rng(0)
    inputs = {
        node.name: random.normal(size=(batch, *node.shape[1:])).astype(np.float32) for node in session.get_inputs()
    }
    session.run(None, inputs)
    return lambda: session.run(None, inputs)


def main() -> None:
    """Print a line per hidden size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", default="16,32,64,128", help="hidden sizes, separated by commas")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for each hidden size and batch")
    arguments = parser.parse_args()
    print("| hidden | batch | FP32, ms | on integers / FP32 | in floating point / FP32 | bytes, both / FP32 |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for hidden in map(int, arguments.hidden.split(",")):
        made = files(ModelConfig(history=168, horizon=24, hidden=hidden, heads=4))
        sizes = ", ".join(f"{len(made[form]) / len(made['fp32']):.2f}" for form in ("integer", "float"))
        for batch in BATCHES:
            found = medians(made, batch, arguments.seconds)
            ratios = " | ".join(f"{found[form] / found['fp32']:.2f}" for form in ("integer", "float"))
            print(f"| {hidden} | {batch} | {found['fp32']:.2f} | {ratios} | {sizes} |", flush=True)


if __name__ == "__main__":
    main()
