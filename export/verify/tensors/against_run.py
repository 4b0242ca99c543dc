"""A file's tensors against those of the run it was exported from."""

from dataclasses import replace

import numpy as np

from qat_tft.config.run import RunConfig
from qat_tft.data.preprocessing import Preprocessing, ScalingMode
from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.metadata import ModelMetadata
from qat_tft.export.verify.tensors.comparison import TensorReport, compare_tensors
from qat_tft.export.verify.tensors.expected import (
    Array,
    ExpectedTensor,
    InputRange,
    Shape,
    expected_fp32,
    expected_int8,
    expected_scaling,
)
from qat_tft.export.verify.tensors.roundings import check_cardinalities, check_roundings
from qat_tft.quantization.scheme import scheme_for
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Group, GroupSize


def tensors_against_run(graph: GraphReader, metadata: ModelMetadata, run: RunFolder) -> TensorReport:
    """Compare every tensor of a file with the run's weights, ranges, statistics and vocabularies.

    Raises:
        RunFolderError: a file of the run folder is missing, damaged or not ours.
    """
    config, preprocessing = run.load_config(), run.load_preprocessing()
    shape = _shape(metadata, config, preprocessing)
    expected: list[ExpectedTensor]
    ranges: dict[str, InputRange] = {}
    if metadata.kind == "int8":
        expected, ranges = expected_int8(run.read_weights("qat"), shape, config.quantization.float_layers)
    else:
        expected = expected_fp32(run.read_weights("fp32"), shape)
    center: dict[str, Array] = {}
    scale: dict[str, Array] = {}
    for group in preprocessing.schema.groups:
        center[group.name], scale[group.name] = _statistics(preprocessing, group)
    groups = zip(preprocessing.schema.groups, shape.groups, strict=True)
    known = {group.category_input: size.cardinalities for group, size in groups if group.category}
    looked_up = check_roundings(graph, ranges), check_cardinalities(graph, known)
    return compare_tensors(graph, [*expected, *expected_scaling(center, scale)], looked_up)


def _shape(metadata: ModelMetadata, config: RunConfig, preprocessing: Preprocessing) -> Shape:
    model = config.model
    form = config.qat_selection if metadata.kind == "int8" else model.selection
    scheme = scheme_for(config.quantization.target)  # trained for; a file for another machine holds the same codes
    return Shape(
        hidden=model.hidden,
        heads=model.heads,
        history=model.history,
        horizon=model.horizon,
        groups=_groups(config, preprocessing),
        highest_code=scheme.weights.high,
        low_bits=metadata.low_bits,
        signed=scheme.activations.signed,
        stored=config.quantization.products == "float",
        transform=metadata.target_transform,
        knots=model.knots if form == "tabulated" else 0,
        window=model.normalize == "window",
    )


def _groups(config: RunConfig, preprocessing: Preprocessing) -> tuple[GroupSize, GroupSize, GroupSize]:
    """Return the widths of the groups as the network sees them: scale of the window and linear path are columns."""
    static, historical, future = preprocessing.group_sizes()
    scale_input = config.model.normalize == "window" and config.model.scale_input
    return (
        replace(static, real=static.real + bool(scale_input)),
        historical,
        replace(future, real=future.real + (config.model.linear_path != "off")),
    )


def _statistics(preprocessing: Preprocessing, group: Group) -> tuple[Array, Array]:
    """Return center and scale of a group's columns, each float32 [N, V]; codes of categories pass as they are."""
    alone = group.name == "static" or preprocessing.mode is ScalingMode.GLOBAL
    rows = 1 if alone else len(preprocessing.series) + 1
    center, scale = np.zeros((rows, group.size), np.float32), np.ones((rows, group.size), np.float32)
    for place, column in enumerate(group.real):
        found = preprocessing.statistics[column]
        center[:, place], scale[:, place] = found.center, found.scale
    return center, scale
