"""A disk that is full, broken or read-only from some change of a file on: one message, and what was there stays."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from faults.contents import Contents, HalfWritten, contents, differing, finals, is_hidden, names
from faults.forked import ANY_CHANGE, Change, Does, Ended, Fault
from faults.tally import Tally
from faults.tiny import Command, Workshop, disturb_each
from qat_tft.runs.layout import STATE

_EACH = 8
_GROWS = Change.CREATE | Change.WRITE | Change.SIZE | Change.MKDIR
_FAULTS = {
    "full": Fault(Does.FAIL_FROM, _GROWS, error=errno.ENOSPC),
    "broken": Fault(Does.FAIL_FROM, ANY_CHANGE & ~Change.REMOVE, error=errno.EIO),
    "broken once": Fault(Does.FAIL_ONCE, ANY_CHANGE & ~Change.REMOVE, error=errno.EIO),
    "read-only": Fault(Does.FAIL_FROM, ANY_CHANGE, error=errno.EROFS),
}


def measure(work: Path, seed: int, share: float) -> Tally:
    """Fail writes; a trial is lost where something half-written is found, or nobody is told, or told badly."""
    tally, drawn = Tally("lost"), random.Random(seed)
    count = round(share * _EACH)
    disturb_each(work, lambda _: count, lambda shop, command, often: _fail(shop, command, often, drawn, tally))
    return tally


def _fail(shop: Workshop, command: Command, count: int, drawn: random.Random, tally: Tally) -> None:
    shop.undisturbed(command)
    changes = [_changes(shop, command, fault) for fault in _FAULTS.values()]
    fail_at(shop, command, [drawn.randint(1, most) for most in islice(cycle(changes), count)], tally)


def fail_at(shop: Workshop, command: Command, numbers: Sequence[int], tally: Tally) -> None:
    """Disturb a command by each fault in turn, at changes of its kinds; these are counted from 1."""
    for number, name in zip(numbers, cycle(_FAULTS), strict=False):
        shop.begin()
        ended = shop.warm.run(command.words, replace(_FAULTS[name], number=number), prepare=command.prepare)
        trial = f"{command.name}, {name} at change {number}"
        tally.add(trial, "; ".join(_problems(shop, command, ended, read_only=name == "read-only")))


def _changes(shop: Workshop, command: Command, fault: Fault) -> int:
    shop.begin()
    return shop.warm.run(command.words, Fault(Does.COUNT, fault.kinds), prepare=command.prepare).changes


def _problems(shop: Workshop, command: Command, ended: Ended, *, read_only: bool) -> Iterator[str]:
    try:
        found = finals(shop.trial)
        finished = not differing(contents(shop.trial), shop.after(command))
        # A folder that may not be written to is read all the same, and what is not kept there is told.
        may_do_without = read_only and command.name in ("check", "report")
        yield from _telling(ended, finished=finished, may_do_without=may_do_without)
        yield from _touched(found, shop.before(), shop.after(command))
        left = [name for name in names(shop.trial) if is_hidden(name)]
        if not read_only and left:
            yield f"left over: {', '.join(left)}"
        again = command.after()
        then = shop.warm.run(again, prepare=command.prepare)
        if then.code != 0:
            yield f"`{' '.join(again[:3])}` then ended with {then.code}: {then.messages[-500:]}"
            return
        off = differing(contents(shop.trial), shop.after(command))
        extra = names(shop.trial) - shop.after(command).keys()
        if off or extra:
            yield f"then not what an undisturbed command leaves: {', '.join({*off, *extra})}"
    except HalfWritten as problem:
        yield str(problem)


def _telling(ended: Ended, *, finished: bool, may_do_without: bool) -> Iterator[str]:
    if ended.code == 0 and finished:  # what failed was nothing that the result needs
        return
    if ended.code == 0 and may_do_without and "cannot write" in f"{ended.output}{ended.messages}":
        return
    told = ended.messages.count("error: ")
    if ended.code != 2 or told != 1 or ended.output or "Traceback" in ended.messages:
        last = ended.messages.strip().splitlines()[-1:] or [""]
        yield f"exit code {ended.code}, {told} messages, {len(ended.output)} characters of output: {last[0]}"


def _touched(found: Contents, before: Contents, after: Contents) -> Iterator[str]:
    for name, content in found.items():
        state = ".unfinished/" in name or Path(name).name == STATE  # where a run stands
        if not state and content not in (before.get(name, ...), after.get(name, ...)):
            yield f"{name} is neither as before nor as it is to be"
    for name in before.keys() - found.keys():
        yield f"{name} is gone"
