"""A forecast is drawn into a whole PNG file."""

import builtins

import numpy as np
import pytest

from qat_tft.errors import PictureError, UnwritableError
from qat_tft.evaluation.plots import draw_forecast


@pytest.mark.parametrize("levels", [(0.5,), (0.1, 0.5, 0.9)], ids=["point", "band"])
def test_a_picture_is_written(tmp_path, levels):
    quantiles = np.ones((4, len(levels))) * np.arange(len(levels))
    draw(tmp_path / "forecast.png", quantiles, levels)
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unwritable_picture_is_named(tmp_path):
    with pytest.raises(UnwritableError, match=r"forecast\.png"):
        draw(tmp_path / "nowhere" / "forecast.png", np.ones((4, 1)), (0.5,))


def test_a_library_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    load = builtins.__import__

    def without_cache_folder(name, *rest):
        if name.startswith("matplotlib"):
            raise OSError("Matplotlib requires access to a writable cache directory")
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_cache_folder)
    with pytest.raises(PictureError, match=r"writable cache directory.*MPLCONFIGDIR"):
        draw(tmp_path / "forecast.png", np.ones((4, 1)), (0.5,))


def draw(path, quantiles, levels):
    draw_forecast(
        path,
        title="a title",
        unit="load",
        history=np.arange(9.0),
        truth=np.arange(4.0),
        naive=np.zeros(4),
        forecasts={"INT8": quantiles},
        levels=levels,
    )
