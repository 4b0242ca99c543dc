"""Makes freed tensors leave the process, so that what checkpointing frees is memory that others can have.

torch asks the C library for aligned blocks. glibc before 2.38 cannot reuse a freed aligned block for a request of
the same size, and keeps what it cannot reuse: a training step that never holds 0.2 GB of activations at once then
takes more than 1 GB. Blocks above a threshold can be mapped one by one instead, and
go back to the system when they are freed; huge pages keep mapping them cheap.
"""

from __future__ import annotations

import ctypes
import os
import platform

LARGE_BLOCK = 2**19
"""Blocks of at least this many bytes are mapped one by one."""

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc


def map_large_blocks() -> bool:
    """Have large blocks mapped one by one from now on; return whether this C library can be told so.

    Call it before torch is imported: torch reads its switch for huge pages at the first allocation.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK))
