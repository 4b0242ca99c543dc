"""The graph that goes into the file: raw values and category codes in, raw quantiles out, and weights if wanted.

B batch, T history, P horizon, Q quantiles.
"""

from typing import Any

import torch
from torch import Tensor, nn

from qat_tft.data.scaling import Scaling
from qat_tft.export.metadata import SERIES_INPUT, InputSpec, ModelMetadata
from qat_tft.model.tft import Forecast
from qat_tft.schema import Group


class RawForecaster(nn.Module):
    """A model and its scaling behind the inputs that ``ModelMetadata.inputs`` names.

    Args:
        model: takes the scaled static, historical and future tensor and returns a Forecast.
        scaling: of the same run; its target statistics turn the quantiles back into the units of the data.
        metadata: fixes names, order and widths of the inputs.

    ``forward`` takes one tensor per input in the order of ``metadata.inputs()`` and returns raw quantiles,
    [B, P, Q]. A category or series code out of its range counts as 0, the unknown value, whatever it is.
    """

    def __init__(self, model: nn.Module, scaling: Scaling, metadata: ModelMetadata) -> None:
        super().__init__()
        self.model = model
        self.scaling = scaling
        self.specs = metadata.inputs()
        self.groups = metadata.schema.groups
        self.cardinalities = {group.name: metadata.size_of(group).cardinalities for group in self.groups}
        self.steps = {"static": (), "historical": (metadata.history,), "future": (metadata.horizon,)}
        self.n_series = 0 if metadata.series is None else len(metadata.series) + 1

    def forward(self, *inputs: Tensor) -> Any:
        """Raw inputs in the order of the file's inputs -> raw quantiles [B, P, Q]."""
        return self.said(*inputs).quantiles

    def said(self, *inputs: Tensor) -> Forecast:
        """Return the forecast of raw inputs in the order of the file's inputs: raw quantiles, and weights."""
        named = {spec.name: tensor for spec, tensor in zip(self.specs, inputs, strict=True)}
        batch = inputs[0].shape[0]
        static, historical, future = (self._join(group, named, batch) for group in self.groups)
        series = self._series(named, batch, inputs[0].device)
        static, historical, future = self.scaling.scale_inputs(static, historical, future, series)
        said: Forecast = self.model(static, historical, future)
        return said._replace(quantiles=self.scaling.unscale_target(said.quantiles, series))

    def _join(self, group: Group, named: dict[str, Tensor], batch: int) -> Tensor:
        # One float tensor per group, real columns first: what the model and the scaling take.
        parts = []
        if group.real:
            parts.append(named[group.real_input])
        if group.category:
            sizes = torch.tensor(self.cardinalities[group.name])
            parts.append(_known_codes(named[group.category_input], sizes).float())
        if not parts:
            return torch.zeros(batch, *self.steps[group.name], 0)
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def _series(self, named: dict[str, Tensor], batch: int, device: torch.device) -> Tensor:
        if not self.n_series:
            return torch.zeros(batch, dtype=torch.int64, device=device)
        return _known_codes(named[SERIES_INPUT], torch.tensor(self.n_series))


class ExplainedForecaster(RawForecaster):
    """The same with every output that ``metadata.outputs()`` names: each is a field of a Forecast.

    Args:
        model, scaling, metadata: as for `RawForecaster`.
    """

    def __init__(self, model: nn.Module, scaling: Scaling, metadata: ModelMetadata) -> None:
        super().__init__(model, scaling, metadata)
        self.outputs = tuple(spec.name for spec in metadata.outputs())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Raw inputs in the order of the file's inputs -> its outputs in their order."""
        said = self.said(*inputs)
        return tuple(getattr(said, name) for name in self.outputs)


def _known_codes(codes: Tensor, sizes: Tensor) -> Tensor:
    return torch.where((codes >= 0) & (codes < sizes), codes, 0)


def example_inputs(specs: tuple[InputSpec, ...], batch: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Random real values and unknown categories in the shapes of a file's inputs."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for spec in specs:
        shape = (batch, *(int(size) for size in spec.shape[1:]))
        real = spec.dtype == "float32"
        examples.append(torch.randn(shape, generator=generator) if real else torch.zeros(shape, dtype=torch.int64))
    return tuple(examples)
