"""Quantization-aware training of the Temporal Fusion Transformer, with a proven INT8 ONNX export.

The public names stand in `__init__.pyi`, which type checkers read too. Each is imported when it is first used, so that
`import qat_tft` alone does not load torch.
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("qat-tft")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
