"""Freed blocks leave the process once large blocks are mapped one by one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PINNED = """
import sys, psutil
if sys.argv[1] == "mapped":
    from qat_tft.checkpointing.heap import map_large_blocks
    assert map_large_blocks()
import torch
process = psutil.Process()
torch.ones(8_000_000)  # 32 MB: glibc raises its own threshold to the largest block it has seen freed
start = process.memory_info().rss
for _ in range(30):  # blocks of 8 MB, each followed by a small one that stays
    large = [torch.ones(2_000_000) for _ in range(4)]
    small = torch.ones(1000)
    kept = globals().setdefault("kept", []); kept.append(small)
    held = large[::2]; globals().setdefault("holders", []).append(held[0])
    del large, held
globals()["holders"].clear()
print(process.memory_info().rss - start)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switch is one of glibc")
def test_freed_blocks_between_kept_ones_go_back_to_the_system():
    def grown(how: str) -> int:
        command = [sys.executable, "-c", PINNED, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert grown("mapped") < 32e6 < grown("as it is")
