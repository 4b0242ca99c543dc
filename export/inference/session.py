"""Forecasts from an ONNX file alone, with onnxruntime and numpy: nothing here needs torch."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from qat_tft.data.category_text import NULL_CATEGORY, category_text
from qat_tft.data.vocabulary import Vocabulary
from qat_tft.errors import DataError, OnnxFileError
from qat_tft.export.metadata import LEAST_BATCH, OUTPUT, InputSpec, ModelMetadata

Array = npt.NDArray[np.generic]
Quantiles = npt.NDArray[np.float32]

Read = TypeVar("Read")
Signature = dict[str, tuple[str, tuple[int | str, ...]]]

_FATAL_ONLY = 4  # errors are raised, and told once
_AGAIN = "It is damaged or not an ONNX file: export it again with `qat-tft export`."
_NEEDED = re.compile(rb'"needs_onnxruntime": "(\d{1,9}\.\d{1,9})"')


class ForecastSession:
    """An exported model, ready to run on the CPU.

    Args:
        path: a file written by ``qat-tft export``.
        optimized: run with all of onnxruntime's graph optimizations, or with none of them.
        threads: threads inside one operator; by default onnxruntime decides.
        optimized_graph: where onnxruntime shall write the graph that it really runs.

    Raises:
        OnnxFileError: the file is missing, damaged, not ours or of a later version.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        optimized: bool = True,
        threads: int | None = None,
        optimized_graph: Path | None = None,
    ) -> None:
        self.path = Path(path)
        self.threads = threads
        self._session = _open(self.path, optimized, threads, optimized_graph)
        properties = self._decoded(lambda: self._session.get_modelmeta().custom_metadata_map)
        self.metadata = ModelMetadata.from_properties(properties, self.path)
        self.inputs = self.metadata.inputs()

    def forecast(self, arrays: Mapping[str, Array]) -> Quantiles:
        """Forecast raw quantiles from raw values.

        Args:
            arrays: input name to values, one array per entry of ``inputs``. Real values are float32 in the
                units of the data, categories int64 codes from ``encode``; all share the first dimension.

        Returns:
            Quantiles of the target in its own units, [batch, horizon, quantiles].

        Raises:
            DataError: a missing or unknown input, another dtype or shape, NaN or infinity. INT8 arithmetic
                would hide a NaN (QuantizeLinear turns it into the lowest code), so it is refused up front.
            OnnxFileError: the file's graph does not fit together.
        """
        return self._run([OUTPUT], arrays)[OUTPUT]

    def require_explanations(self) -> None:
        """Raise an OnnxFileError where the file puts out nothing but quantiles."""
        if not self.metadata.explained:
            raise OnnxFileError(
                "this file puts out no explanations",
                where=str(self.path),
                next_step="`qat-tft export --with-explanations` writes one that does.",
            )

    def explain(self, arrays: Mapping[str, Array]) -> dict[str, Quantiles]:
        """Return every output of a file with explanations: quantiles, selection weights by group, and attention.

        Args:
            arrays: as `forecast` takes them.

        Returns:
            The outputs that ``metadata.outputs()`` names, by name. Selection weights at a step of the history that is
            padding (0 in ``history.present``) mean nothing.

        Raises:
            DataError: as `forecast`.
            OnnxFileError: the file has no explanations, or its graph does not fit together.
        """
        self.require_explanations()
        return self._run([spec.name for spec in self.metadata.outputs()], arrays)

    def finite_forecast(self, arrays: Mapping[str, Array]) -> Quantiles:
        """As ``forecast``, with an OnnxFileError where an answer is NaN or infinite: weights of a damaged file."""
        quantiles = self.forecast(arrays)
        if not np.isfinite(quantiles).all():
            row, step, level = np.argwhere(~np.isfinite(quantiles))[0]
            raise OnnxFileError(
                f"the file forecasts {quantiles[row, step, level]} for step {step + 1}",
                where=str(self.path),
                next_step="Its weights are damaged, or the data far from those of its training: `qat-tft check` tells",
            )
        return quantiles

    def encode(self, column: str, values: Iterable[object]) -> npt.NDArray[np.int64]:
        """Codes of a category column's values; a value that training never saw has code 0.

        Raises:
            DataError: the file has no category column of this name.
        """
        vocabularies = self.metadata.vocabularies
        if column not in vocabularies:
            raise DataError(
                f"'{column}' is not a category column of the model",
                where=str(self.path),
                allowed=", ".join(vocabularies) or "none, the model has no category columns",
            )
        return Vocabulary(column, tuple(vocabularies[column])).encode([_text(value) for value in values])

    def series_codes(self, ids: Iterable[tuple[str, ...]]) -> npt.NDArray[np.int64]:
        """Codes of series for the input ``series``; one that training never saw has code 0."""
        code_of = {name: code for code, name in enumerate(self.metadata.series or (), start=1)}
        return np.array([code_of.get(tuple(name), 0) for name in ids], dtype=np.int64)

    def signature(self) -> tuple[Signature, Signature]:
        """Inputs and outputs as the file's graph declares them: name to element type and shape."""
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        return self._decoded(lambda: (_signature(inputs), _signature(outputs)))

    def _run(self, outputs: list[str], arrays: Mapping[str, Array]) -> dict[str, Quantiles]:
        _refuse_unlike(arrays, self.inputs)
        for spec in self.inputs:
            _refuse_non_finite(arrays[spec.name], spec)
        try:
            values = self._session.run(outputs, dict(arrays))
        except (
            Exception
        ) as error:  # onnxruntime raises a dozen unrelated classes for a graph that does not fit together
            raise OnnxFileError(
                f"onnxruntime cannot run this file ({str(error).splitlines()[0]})",
                where=str(self.path),
                next_step=_AGAIN,
            ) from error
        return {name: np.asarray(value, dtype=np.float32) for name, value in zip(outputs, values, strict=True)}

    def _decoded(self, read: Callable[[], Read]) -> Read:
        """Return texts of the file: onnxruntime takes any bytes for them, and decodes them when they are asked for."""
        try:
            return read()
        except UnicodeDecodeError as error:
            raise OnnxFileError(
                f"a text in it is not UTF-8 ({error})", where=str(self.path), next_step=_AGAIN
            ) from None


def session_options(*, optimized: bool, threads: int | None) -> ort.SessionOptions:
    """How every file of ours is run: with all optimizations of onnxruntime or none; errors are raised, not printed."""
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


def _text(value: object) -> str:
    # How a category reads as text in the vocabularies; a fraction is in none of them.
    try:
        text = category_text(value)
    except ValueError:
        return str(value)
    return NULL_CATEGORY if text is None else text


def _signature(nodes: Iterable[ort.NodeArg]) -> Signature:
    element = {"tensor(float)": "float32", "tensor(int64)": "int64"}
    return {node.name: (element.get(node.type, node.type), tuple(node.shape)) for node in nodes}


def _open(path: Path, optimized: bool, threads: int | None, graph: Path | None) -> ort.InferenceSession:
    if not path.is_file():
        raise OnnxFileError("there is no such file", where=str(path), next_step="`qat-tft export --int8` writes one.")
    _refuse_older_runtime(path)
    options = session_options(optimized=optimized, threads=threads)
    if graph is not None:
        options.optimized_model_filepath = str(graph)
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a dozen unrelated classes for a damaged file
        if graph is not None:
            _open(path, optimized, threads, None)  # where this fails, too, it is the file's fault
            raise OnnxFileError(
                f"onnxruntime cannot write the graph that it runs ({str(error).splitlines()[0]})",
                where=str(graph),
                next_step="Free some space there, or name another folder with TMPDIR.",
            ) from None
        raise OnnxFileError(
            f"onnxruntime cannot load this file ({str(error).splitlines()[0]})",
            where=str(path),
            next_step=_AGAIN,
        ) from error


def _refuse_older_runtime(path: Path) -> None:
    # Before the file is loaded: an onnxruntime that does not know a type of tensor says nothing a user can act on.
    found = _NEEDED.search(path.read_bytes())
    needed = found[1].decode() if found else ""
    if needed and _version(ort.__version__) < _version(needed):
        raise OnnxFileError(
            f"this file needs onnxruntime {needed} or later, and {ort.__version__} is installed",
            where=str(path),
            next_step="Install a later onnxruntime, or export again with --store int8, which every version runs.",
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def _refuse_unlike(arrays: Mapping[str, Array], specs: tuple[InputSpec, ...]) -> None:
    names = [spec.name for spec in specs]
    for name in names:
        if name not in arrays:
            raise DataError(f"input '{name}' is missing", allowed=f"the inputs {', '.join(names)}")
    for name in arrays:
        if name not in names:
            raise DataError(f"there is no input '{name}'", allowed=f"the inputs {', '.join(names)}")
    batch = len(arrays[names[0]]) if arrays[names[0]].ndim else 0
    for spec in specs:
        array = arrays[spec.name]
        shape = (batch, *spec.shape[1:])
        if array.dtype != np.dtype(spec.dtype) or array.shape != shape or batch < LEAST_BATCH:
            raise DataError(
                f"input '{spec.name}' is {array.dtype} of shape {array.shape}",
                allowed=f"{spec.dtype} of shape ({', '.join(str(size) for size in spec.shape)}), "
                f"with the same batch size, at least {LEAST_BATCH}, for every input",
            )


def _refuse_non_finite(array: Array, spec: InputSpec) -> None:
    if array.dtype != np.float32:
        return
    finite = np.isfinite(array)
    if finite.all():
        return
    place = np.argwhere(~finite)[0]
    raise DataError(
        f"input '{spec.name}' holds {array[tuple(place)]} at position {tuple(int(i) for i in place)}",
        where=f"column '{spec.columns[place[-1]]}'",
        allowed="finite numbers",
        next_step="Fill or drop the missing values before forecasting.",
    )
