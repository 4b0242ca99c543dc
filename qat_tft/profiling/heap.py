"""Lets freed tensors be allocated again, so that what checkpointing frees is memory that others can have.

torch asks the C library for aligned blocks. glibc before 2.38 serves such a request from a larger block and puts the
few bytes cut off at its ends into caches for small requests, where they stay apart. Freed tensors then never grow
together again to what the next request of the same size needs: a training step that never holds 0.3 GB at once
takes more than 1 GB. Without these caches the ends are merged with the block when it is freed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

_TUNABLES = "GLIBC_TUNABLES"
_NO_THREAD_CACHE = "glibc.malloc.tcache_count=0"
_MXFAST, _TRIM_THRESHOLD, _MMAP_THRESHOLD = 1, -1, -3  # malloc.h of glibc
_SETTINGS = (
    (_MXFAST, 0),  # no bins that keep small blocks apart
    (_MMAP_THRESHOLD, 2**25),  # the most that every version takes: mapping blocks anew costs a page fault per page
    (_TRIM_THRESHOLD, 2**31 - 1),  # for the same reason, the heap's end is not given back after every block
)


def merge_freed_blocks() -> bool:
    """Have freed blocks merged from now on; return whether this C library can be told so.

    It does its work only in a process that runs without the cache of small blocks: see `restart_without_block_cache`.
    """
    if not _is_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(parameter, value) for parameter, value in _SETTINGS)


def restart_without_block_cache() -> None:
    """Start this program again with glibc's cache of small blocks turned off, which must be said before it starts.

    Call it before anything else is done. It returns where nothing is to be changed: in the program that it has
    started, and with another C library.
    """
    tunables = os.environ.get(_TUNABLES, "")
    if not _is_glibc() or "tcache_count" in tunables:
        return
    os.environ[_TUNABLES] = f"{tunables}:{_NO_THREAD_CACHE}" if tunables else _NO_THREAD_CACHE
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def give_back_free_blocks() -> None:
    """Return what is free in the heap to the system, where the C library can be told to."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
