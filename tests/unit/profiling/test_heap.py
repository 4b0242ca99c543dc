"""Freed blocks are used again once glibc merges them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PINNED = """
import sys
if sys.argv[1] == "merged":
    from qat_tft.profiling.heap import merge_freed_blocks, restart_without_block_cache
    restart_without_block_cache()
    assert merge_freed_blocks()
import psutil, torch
torch.ones(8_000_000)  # 32 MB: glibc raises its own threshold to the largest block it has seen freed
start = peak = psutil.Process().memory_info().rss
kept = []
for _ in range(30):  # blocks of 8 MB, each followed by small ones that stay
    large = []
    for _ in range(4):
        large.append(torch.ones(2_000_000))
        kept.append([torch.ones(4) for _ in range(10)])
    del large
    peak = max(peak, psutil.Process().memory_info().rss)  # the last one may be small: a kernel takes idle pages away
print(peak - start)
"""
RESTARTED = """
import os, sys
from qat_tft.profiling.heap import restart_without_block_cache
print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], flush=True)
restart_without_block_cache()
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are switches of glibc")


def run(program: str, *arguments: str, tunables: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment |= {} if tunables is None else {"GLIBC_TUNABLES": tunables}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


@glibc
def test_blocks_freed_between_small_ones_that_stay_are_used_again():
    assert int(run(PINNED, "merged")) < 60e6 < int(run(PINNED, "as it is"))


@glibc
@pytest.mark.parametrize("before", [None, "glibc.malloc.arena_max=2"], ids=["no-tunables", "tunables-of-ones-own"])
def test_a_program_restarts_once_with_the_same_arguments_and_keeps_other_tunables(before):
    first, second = run(RESTARTED, "one", "two words", tunables=before).splitlines()
    assert first == f"{before} ['one', 'two words']"
    own = f"{before}:" if before else ""
    assert second == f"{own}glibc.malloc.tcache_count=0 ['one', 'two words']"


@glibc
def test_a_program_whose_cache_was_set_by_its_user_does_not_restart():
    assert len(run(RESTARTED, tunables="glibc.malloc.tcache_count=3").splitlines()) == 1
