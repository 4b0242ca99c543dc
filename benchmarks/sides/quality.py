"""Forecast quality on real sets: the measured form of the selection networks beside the exact one, and the INT8 file.

Both forms are trained from the same seeds on the same windows, through the commands that users have; runs that lie in
the folder of runs already are taken as they are. N windows, T steps, H hidden, Q quantiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.model.loss import q_risk
from qat_tft.model.selection_form import in_form, selection_sqnr
from qat_tft.runs.folder import RunFolder
from sides.process import qat_tft
from sides.workloads import EXACT_FORM, FORM

Array = npt.NDArray[np.float32]

ROLES = Path(__file__).resolve().parents[2] / "examples"
BLOCK = 64
COMPARED = 256
"""Windows that the selected vectors of both forms are compared on."""


@dataclass(frozen=True)
class DataSet:
    """A set and how it is trained; its roles stand in examples/, or among the options."""

    name: str
    options: str


SETS = (
    DataSet(
        "ett_h1",
        "--validation-from 2017-06-26 --test-from 2017-10-24 --history 168 --horizon 24 --hidden 32 --dropout 0.3 "
        "--epochs 8 --batches-per-epoch 60",
    ),
    DataSet(
        "vic_electricity",
        "--time time --target demand --id series_id --known holiday:category --observed temperature "
        "--calendar hour,day_of_week:category --validation-from 2014-07-01 --test-from 2014-10-01 --history 96 "
        "--horizon 48 --hidden 32 --epochs 8 --batches-per-epoch 60",
    ),
    DataSet(
        "stallion_beverages",
        "--validation-from 2017-01-01 --test-from 2017-07-01 --history 24 --horizon 6 --hidden 16 --dropout 0.2 "
        "--epochs 5 --batches-per-epoch 80",
    ),
    DataSet(
        "oxford_man_volatility",
        "--validation-from 2016-01-01 --test-from 2018-01-01 --history 66 --horizon 5 --hidden 32 --dropout 0.2 "
        "--season 1 --epochs 6 --batches-per-epoch 100",
    ),
)
COMMON = "--batch-size 64"
QAT = "--use-qat --qat-epochs 2"


@dataclass(frozen=True)
class Quality:
    """What the runs of one set found, seed by seed.

    Attributes:
        exact, measured: q-risk of the floating-point model on the test part in either form, mean over the quantiles.
        fp32_file, int8_file: q-risk per quantile of the files of the measured form on the run's check windows.
        selected_db: lowest SQNR of a selection network's output, exact form against measured form, the same weights.
    """

    exact: tuple[float, ...]
    measured: tuple[float, ...]
    fp32_file: tuple[dict[str, float], ...]
    int8_file: tuple[dict[str, float], ...]
    selected_db: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Mean q-risk of the measured form over that of the exact one."""
        return statistics.fmean(self.measured) / statistics.fmean(self.exact)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The same, seed by seed."""
        return tuple(one / other for one, other in zip(self.measured, self.exact, strict=True))

    @property
    def int8_ratio(self) -> dict[str, float]:
        """Quantile to mean q-risk of the INT8 file over that of the FP32 file."""

        def mean(risks: Sequence[Mapping[str, float]], level: str) -> float:
            return statistics.fmean(risk[level] for risk in risks)

        return {level: mean(self.int8_file, level) / mean(self.fp32_file, level) for level in self.int8_file[0]}


def require_sets(data: Path) -> None:
    """Check that a folder holds every set.

    Raises:
        FileNotFoundError: one is missing.
    """
    for one in SETS:
        if not _file_of(one, data).exists():
            raise FileNotFoundError(f"{data} holds no {_file_of(one, data).name}")


def measure_quality(one: DataSet, data: Path, runs: Path, seeds: int) -> Quality:
    """Train a set in both forms from each seed, unless the runs are there, and return what they found."""
    exact = [trained(one, data, runs, seed, EXACT_FORM, "exact") for seed in range(seeds)]
    measured = [trained(one, data, runs, seed, FORM, "measured") for seed in range(seeds)]
    for run in measured:
        if not run.onnx_file("int8").exists():
            qat_tft("export", run.name, "--int8", "--runs-dir", str(runs))
    return Quality(
        exact=tuple(map(test_risk, exact)),
        measured=tuple(map(test_risk, measured)),
        fp32_file=tuple(file_risk(run, run.onnx_file("fp32")) for run in measured),
        int8_file=tuple(file_risk(run, run.onnx_file("int8")) for run in measured),
        selected_db=tuple(selected_db_of(run) for run in measured),
    )


def trained(one: DataSet, data: Path, runs: Path, seed: int, form: Mapping[str, Any], name: str) -> RunFolder:
    """Return the run of a set in one form from one seed; the measured form has a quantization-aware phase as well."""
    run = f"{one.name}-{name}-{seed}"
    if not (runs / run).exists():
        roles = ROLES / f"{one.name}.toml"
        schema = ("--schema", str(roles)) if roles.exists() else ()
        chosen = [word for field, value in form.items() for word in (f"--{field}", str(value))]
        more = [*chosen, *one.options.split(), *COMMON.split(), *(QAT.split() if name == "measured" else ())]
        file = str(_file_of(one, data))
        where = ("--name", run, "--runs-dir", str(runs))
        qat_tft("train", "--parquet-file", file, *schema, *more, "--seed", str(seed), *where)
    return RunFolder.open(runs / run)


def _file_of(one: DataSet, data: Path) -> Path:
    return data / f"{one.name}.parquet"


def test_risk(run: RunFolder) -> float:
    """Return the floating-point model's q-risk on the test part, mean over the quantiles."""
    return statistics.fmean(run.load_results().q_risk["fp32"])


def file_risk(run: RunFolder, file: Path) -> dict[str, float]:
    """Return a file's q-risk per quantile on the windows of the test part that the run keeps."""
    session, windows = ForecastSession(file, threads=1), run.load_check_windows()
    blocks = torch.arange(len(windows.target)).split(BLOCK)
    answers = [session.forecast(window_inputs(windows, rows, session.metadata)) for rows in blocks]
    risks = q_risk(torch.from_numpy(np.concatenate(answers)), windows.target, session.metadata.quantiles)
    return dict(zip(map(str, session.metadata.quantiles), risks.tolist(), strict=True))


def selected_db_of(run: RunFolder) -> float:
    """Return the SQNR of the selected vectors in dB: a run's model in exact form against the form it was trained in."""
    model, shape = run.load_fp32_model(), run.load_config().model
    windows = run.load_check_windows()
    inputs = scaled(windows.windows(slice(0, COMPARED)), run.load_preprocessing().scaling())
    return selection_sqnr(in_form(model, "exact", knots=shape.knots), model, inputs)


def scaled(windows: Batch, scaling: Scaling) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a model takes for raw windows."""
    return scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series)
