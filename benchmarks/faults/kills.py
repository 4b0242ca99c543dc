"""SIGKILL at random moments and at chosen changes of files: all is whole, and the next command gets to the end."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from faults.contents import HalfWritten, contents, differing, finals, names
from faults.forked import Does, Fault
from faults.tally import Tally
from faults.tiny import Command, Workshop, disturb_each

_EACH = {"train": 40, "export": 40, "check": 40, "predict": 40, "backtest": 40}
_OTHERS = 5
"""Kills of each command that is not named above."""


def measure(work: Path, seed: int, share: float) -> Tally:
    """Kill commands; a trial is lost where something half-written is found, or the command does not get to its end."""
    tally, drawn = Tally("lost"), random.Random(seed)
    disturb_each(
        work,
        lambda command: round(share * _EACH.get(command.name, _OTHERS)),
        lambda shop, command, count: _kill(shop, command, count, drawn, tally),
    )
    return tally


def _kill(shop: Workshop, command: Command, count: int, drawn: random.Random, tally: Tally) -> None:
    """Kill half of the trials at random moments, half at random changes of files."""
    ended = shop.undisturbed(command)
    for _ in range(count - count // 2):
        seconds = drawn.uniform(0.0, ended.seconds)
        shop.begin()
        trial = f"{command.name}, killed after {seconds:.3f} of {ended.seconds:.3f} s"
        tally.add(trial, "; ".join(_problems(shop, command, _killed_after(shop, command, seconds))))
    kill_at(shop, command, [drawn.randint(1, ended.changes) for _ in range(count // 2)], tally)


def kill_at(shop: Workshop, command: Command, numbers: Sequence[int], tally: Tally) -> None:
    """Kill an undisturbed command before and after changes of files in turn; these are counted from 1."""
    for number, does in zip(numbers, cycle((Does.KILL_BEFORE, Does.KILL_AFTER)), strict=False):
        shop.begin()
        ended = shop.warm.run(command.words, Fault(does, number=number), prepare=command.prepare)
        trial = f"{command.name}, {does.name.lower().replace('_', ' ')} change {number}"
        tally.add(trial, "; ".join(_problems(shop, command, ended.code)))


def _killed_after(shop: Workshop, command: Command, seconds: float) -> int | None:
    pid = shop.warm.start(command.words, prepare=command.prepare)
    time.sleep(seconds)
    shop.warm.kill(pid)
    return shop.warm.wait(pid).code


def _problems(shop: Workshop, command: Command, code: int | None) -> Iterator[str]:
    if code not in (0, -signal.SIGKILL):
        yield f"it was to be killed and ended with {code}"
    try:
        finals(shop.trial)
        again = command.after()
        ended = shop.warm.run(again, prepare=command.prepare)
        if ended.code != 0:
            yield f"`{' '.join(again[:3])}` then ended with {ended.code}: {ended.messages[-500:]}"
            return
        off = differing(contents(shop.trial), shop.after(command))
    except HalfWritten as found:
        yield str(found)
        return
    left = names(shop.trial) - shop.after(command).keys()
    if left:
        yield f"left over: {', '.join(sorted(left))}"
    elif off:
        yield f"not what an undisturbed command leaves: {', '.join(off)}"
