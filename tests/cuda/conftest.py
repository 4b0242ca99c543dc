"""Tests of what a GPU does differently. Each body runs on the CPU too, so that it is known to say what it means to."""

from __future__ import annotations

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
ON_CUDA = [pytest.mark.cuda, pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device is here")]


@pytest.fixture(params=[pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=ON_CUDA)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Return each device that the body is for; the GPU is skipped where there is none."""
    return torch.device(request.param)
