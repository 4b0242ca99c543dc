"""Small ONNX files made by hand, and a small run folder whose FP32 model is exported once per process."""

import os
from collections.abc import Callable
from pathlib import Path
from shutil import copy2, copytree

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

from qat_tft.config.run import RunConfig
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Part, Split
from qat_tft.data.windows import Windows
from qat_tft.export.build.run_export import plan_fp32, plan_int8, write_plans
from qat_tft.export.metadata import METADATA_KEY, ModelMetadata
from qat_tft.export.verify import check
from qat_tft.model.forms import SelectionForm
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.products import Products
from qat_tft.runs.build import build_model, build_qat_model
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Columns, Schema

HISTORY, HORIZON, ROWS, KNOTS = 6, 3, 120, 17
SCHEMA = Schema(
    time="time",
    target="load",
    id=("plant",),
    static=Columns(real=("height",), category=("plant",)),
    observed=Columns(real=("wind",)),
    known=Columns(real=("hour",), category=("shift",)),
)


@pytest.fixture
def metadata() -> ModelMetadata:
    return ModelMetadata(
        kind="fp32",
        schema=SCHEMA,
        vocabularies={"plant": ("north", "south"), "shift": ("<null>", "day", "true")},
        series=(("north",), ("south",)),
        quantiles=(0.1, 0.5, 0.9),
        history=HISTORY,
        horizon=HORIZON,
        weights="ab" * 32,
        versions={"torch": "2.13.0"},
    )


def persistence_model(metadata: ModelMetadata) -> onnx.ModelProto:
    """Every quantile of every step is the last value of the target."""
    types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(spec.name, types[spec.dtype], spec.shape) for spec in metadata.inputs()]
    output = helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, metadata.outputs()[0].shape)
    width = len(metadata.schema.group("historical").real)
    copies = np.zeros((width, len(metadata.quantiles)), np.float32)
    copies[0] = 1.0
    numbers = {"last": [metadata.history - 1], "end": [metadata.history], "steps": [1], "axis": [1]}
    initializers = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    initializers.append(numpy_helper.from_array(np.array([1, metadata.horizon, 1]), "repeat"))
    initializers.append(numpy_helper.from_array(copies, "copies"))
    nodes = [
        helper.make_node("Slice", ["historical_real", "last", "end", "axis", "steps"], ["present"]),
        helper.make_node("Tile", ["present", "repeat"], ["repeated"]),
        helper.make_node("MatMul", ["repeated", "copies"], ["quantiles"]),
    ]
    graph = helper.make_graph(nodes, "persistence", inputs, [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, {METADATA_KEY: metadata.to_text()})
    return model


@pytest.fixture
def persistence_for(tmp_path: Path) -> Callable[[ModelMetadata], Path]:
    """Write a persistence file with given metadata."""

    def write(metadata: ModelMetadata) -> Path:
        path = tmp_path / "persistence.onnx"
        onnx.save(persistence_model(metadata), path)
        return path

    return write


@pytest.fixture
def persistence_file(metadata: ModelMetadata, persistence_for: Callable[[ModelMetadata], Path]) -> Path:
    return persistence_for(metadata)


@pytest.fixture
def inputs_for() -> Callable[[ModelMetadata, int], dict[str, np.ndarray]]:
    """Make valid random inputs of a given batch."""

    def make(metadata: ModelMetadata, batch: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(batch)
        arrays = {}
        for spec in metadata.inputs():
            shape = (batch, *spec.shape[1:])
            drawn = random.normal(size=shape) if spec.dtype == "float32" else random.integers(0, 3, shape)
            arrays[spec.name] = drawn.astype(spec.dtype)
        return arrays

    return make


def plant_table(rows: int = ROWS, plants: tuple[str, ...] = ("north", "south")) -> pa.Table:
    """Hourly loads of a few plants."""
    random = np.random.default_rng(0)
    hours = np.arange(rows)
    tables = [
        pa.table(
            {
                "plant": [plant] * rows,
                "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
                "load": 40 + 10 * number + 5 * np.sin(hours / 4) + random.normal(size=rows),
                "height": [100.0 * number] * rows,
                "wind": random.normal(size=rows),
                "hour": (hours % 24).astype(np.float64),
                "shift": ["day" if 6 <= hour % 24 < 18 else "night" for hour in hours],
            }
        )
        for number, plant in enumerate(plants)
    ]
    return pa.concat_tables(tables)


def write_run(
    folder: Path,
    *,
    target: str = "x86",
    products: Products = "integer",
    selection: SelectionForm = "tabulated",
    weight_bits: int = 8,
) -> RunFolder:
    """A calibrated run folder with random weights: what training leaves, without the training."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(plant_table(), folder / "data.parquet")
    panel = read_panel(folder / "data.parquet", SCHEMA)
    split = Split.by_fraction(panel, 0.2, 0.3)
    preprocessing = Preprocessing.fit(panel, split, "series")
    windows = Windows(preprocessing.encode(panel), history=HISTORY, horizon=HORIZON, split=split, part=Part.TEST)
    shape = {"hidden": 16, "heads": 2, "history": HISTORY, "horizon": HORIZON, "selection_chunk": 2}
    config = RunConfig.checked(
        {
            "model": {**shape, "selection": selection, "knots": KNOTS, "linear_path": "ridge", "scale_input": True},
            "quantization": {"target": target, "products": products, "weight_bits": weight_bits},
        },
        where="the test",
    )
    run = RunFolder(folder)
    run.write_setup(config, SCHEMA, preprocessing)
    run.write_check_windows(windows[list(range(len(windows)))])
    _write_weights(run)
    return run


def _write_weights(run: RunFolder) -> None:
    """Random weights, among them gains and biases that are no ones and zeros, and ranges calibrated for a target."""
    config, preprocessing, windows = run.load_config(), run.load_preprocessing(), run.load_check_windows()
    torch.manual_seed(0)
    model = build_model(config.model, preprocessing, SCHEMA)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for buffer in model.frame.buffers():  # fitted in training
            buffer.add_(0.05 * torch.rand_like(buffer))
    run.write_weights("fp32", model.state_dict())
    settings = config.quantization
    qat = build_qat_model(model, settings.target, products=settings.products, layout=settings.layout)
    scaling = preprocessing.scaling()
    calibrate(qat, [scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series)])
    run.write_weights("qat", qat.state_dict())


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the test processes of this session share: what takes long is made by the first that needs it."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    (folder / "shared").mkdir(exist_ok=True)
    return folder / "shared"


def made_once(folder: Path, make: Callable[[Path], object]) -> RunFolder:
    """A run folder that `make` filled, in this process or in another one."""
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            make(folder.with_name(f"{folder.name}.unfinished"))
            folder.with_name(f"{folder.name}.unfinished").rename(folder)
    return RunFolder(folder)


@pytest.fixture(scope="session")
def exported_run(shared: Path) -> RunFolder:
    """A run with per-series scaling, a frame, static, observed, known and category columns, exported in FP32."""

    def make(folder: Path) -> None:
        run = write_run(folder)
        write_plans(run, [plan_fp32(run)])

    return made_once(shared / "plants", make)


MakeRun = Callable[..., RunFolder]


@pytest.fixture(scope="session")
def run_for(shared: Path, exported_run: RunFolder) -> MakeRun:
    """Make a run that is calibrated for a target and exported, with options of the INT8 file; each is made once.

    Tests must not change it: `damaged` gives them a copy.
    """

    def run_for_target(
        trained: str = "x86",
        *,
        products: Products = "integer",
        selection: SelectionForm = "tabulated",
        weight_bits: int = 8,
        exported: bool = True,
        **options: str,
    ) -> RunFolder:
        def make(folder: Path) -> None:
            run = write_run(folder, target=trained, products=products, selection=selection, weight_bits=weight_bits)
            if exported:
                if selection == "tabulated":
                    copy2(exported_run.onnx_file("fp32"), run.path)  # made of the same weights
                write_plans(run, [plan_int8(run, **options)])

        bits = [] if weight_bits == 8 else [str(weight_bits)]
        name = "-".join([trained, products, selection, *bits, *options.values(), *([] if exported else ["bare"])])
        return made_once(shared / name, make)

    return run_for_target


@pytest.fixture(scope="session")
def explained_run(shared: Path, run_for: MakeRun) -> RunFolder:
    """The run of `run_for()`, its INT8 file exported with explanations; tests must not change it."""

    def make(folder: Path) -> None:
        run = RunFolder(copytree(run_for().path, folder))
        write_plans(run, [plan_int8(run, with_explanations=True)])

    return made_once(shared / "explained", make)


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[[RunFolder], RunFolder]:
    """A copy of a run that a test may damage."""
    return lambda run: RunFolder(copytree(run.path, tmp_path / "damaged"))


@pytest.fixture(autouse=True)
def no_long_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check times both files for seconds; here nobody reads that."""
    monkeypatch.setattr(check, "_TIMING_SECONDS", 0.0)
