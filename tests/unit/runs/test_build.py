"""What is built from a configuration, and what would not fit into memory."""

from __future__ import annotations

import pytest

from qat_tft.config.model import ModelConfig
from qat_tft.runs import build
from qat_tft.schema import GroupSize

SMALL = {"history": 12, "horizon": 4, "hidden": 8, "heads": 2}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="tables"),
        pytest.param({"selection": "exact", "encoder_layers": 3}, id="exact"),
        pytest.param({"hidden": 64, "heads": 4, "knots": 5}, id="wide"),
        pytest.param({"history": 300, "horizon": 200, "linear_path": "ridge"}, id="long"),
    ],
)
@pytest.mark.parametrize("columns", [(0, 1, 0), (2, 40, 3)], ids=["one column", "many columns"])
def test_no_model_has_more_weights_than_the_bound(more: dict, columns: tuple[int, int, int]) -> None:
    config = ModelConfig(**{"linear_path": "off", **SMALL, **more})
    sizes = tuple(GroupSize(count, (900,) if count > 1 else ()) for count in columns)
    model = build.model_of_sizes(config, sizes)
    weights = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    assert weights <= build._most_weights(config, sizes)


def test_a_model_that_surely_fits_is_not_built_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "model_of_sizes", None)
    build.refuse_too_large(ModelConfig(**SMALL), (GroupSize(0), GroupSize(3), GroupSize(1)))
    monkeypatch.setattr(build, "free_bytes", lambda device: 1000)
    with pytest.raises(TypeError):
        build.refuse_too_large(ModelConfig(**SMALL), (GroupSize(0), GroupSize(3), GroupSize(1)))
