"""The ranks of a training: processes that run the same job, each on its share of every batch.

Every rank makes every call of this module in the same order. With one process each of them does nothing. What ranks
tell one another is tensors and JSON; nothing is pickled.
"""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

# Its functions keep the group that there is when they are defined, as a default: a group lives as long as it is kept,
# and the others would wait for one that this rank has left.
import torch.distributed.nn
from torch import Tensor, distributed

from qat_tft.errors import LostRankError, UserError
from qat_tft.launch import launched

_PATIENCE = timedelta(minutes=30)
"""How long a rank waits for one that is alive: another may have more rows to read."""
_FIRST_SPEAKS = 5.0
"""Seconds that others leave to rank 0, when a rank is lost, to say so."""


class RanksCalled(Exception):  # noqa: N818 - a call, and no error
    """A rank has called all of them together, out of whatever they were doing; `said` is what it told them."""

    def __init__(self, said: str) -> None:
        self.said = said
        super().__init__(said)


class _Meeting:
    """Where the ranks of this process meet: the store that outlives their groups, and the groups of now.

    A group that broke cannot be used again: after a call the ranks leave it and make the next one.
    """

    def __init__(self, store: Any, device: str) -> None:
        self.store, self.device = store, device
        self.generation = 0
        self.on_host: distributed.ProcessGroup | None = None
        if device == "cuda":
            self.on_host = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def call(self) -> str:
        """Name under which the store holds what a rank of this generation has called."""
        return f"qat_tft/call/{self.generation}"

    def called(self) -> str | None:
        """Return what was called in this generation; None: nothing, or nobody is left to ask."""
        try:
            return self.store.get(self.call).decode() if self.store.check([self.call]) else None
        except RuntimeError:
            return None

    def again(self) -> None:
        """Leave the broken groups, and meet in new ones."""
        place, count = distributed.get_rank(), distributed.get_world_size()
        if self.device == "cuda":
            distributed.distributed_c10d._abort_process_group()
        else:
            distributed.destroy_process_group()
        self.generation += 1
        meeting = distributed.PrefixStore(f"qat_tft/{self.generation}", self.store)  # type: ignore[attr-defined]
        backend = _BACKENDS[self.device]
        distributed.init_process_group(backend, store=meeting, rank=place, world_size=count, timeout=_PATIENCE)
        if self.on_host is not None:
            self.on_host = distributed.new_group(backend="gloo", timeout=_PATIENCE)


_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
_meeting: _Meeting | None = None


def join(device: str) -> None:
    """Meet the other ranks, where a launcher has started several; once in a process.

    Args:
        device: "cpu" or "cuda"; gradients are added up there.

    Raises:
        ConfigError: as `launched`.
        LostRankError: they did not come.
    """
    global _meeting
    if launched().world == 1 or _meeting is not None:
        return
    with _all_there():
        if not distributed.is_initialized():
            _meet_first(_BACKENDS[device])
        # torch has no public name for where its groups meet
        _meeting = _Meeting(distributed.distributed_c10d._get_default_store(), device)
    atexit.register(_leave)


def _meet_first(backend: str) -> None:
    """Make the first group of these ranks.

    A launcher keeps its store when it starts ranks again, and torch takes no notice: one that comes first would find
    the address of a process that is gone.
    """
    meeting = distributed.rendezvous("env://", timeout=_PATIENCE)  # type: ignore[attr-defined]
    store, place, count = next(meeting)
    own = distributed.PrefixStore(f"qat_tft/start/{launched().restarts}", store)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=own, rank=place, world_size=count, timeout=_PATIENCE)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def world() -> int:
    """Return how many ranks there are."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this one."""
    return distributed.get_rank() if world() > 1 else 0


def is_first() -> bool:
    """Return whether this is the rank that writes and prints."""
    return rank() == 0


def named(count: int | None = None) -> str:
    """Return how a sentence calls so many ranks; by default those that there are."""
    count = world() if count is None else count
    return f"{count} ranks" if count > 1 else "one process"


def share(count: int, of: int | None = None) -> slice:
    """Return which of `count` things in order are for a rank, this one by default; the first ranks have one more."""
    place, ranks = rank() if of is None else of, world()
    each, more = divmod(count, ranks)
    begin = place * each + min(place, more)
    return slice(begin, begin + each + (place < more))


def largest_share(count: int) -> int:
    """Return how many of `count` things the ranks with the most have."""
    return len(range(count)[share(count, of=0)])


def add(tensor: Tensor) -> None:
    """Add up a tensor over all ranks, in place; all get the same bits."""
    if world() > 1:
        with _all_there():
            _begin_to_add(tensor).wait()


def _begin_to_add(tensor: Tensor) -> distributed.Work:
    group = _on_host() if tensor.device.type == "cpu" else None
    work: distributed.Work = distributed.all_reduce(tensor, group=group, async_op=True)
    return work


def widen(low: Tensor, high: Tensor) -> None:
    """Take the lowest and the highest of every element over all ranks, in place; NaN counts as infinite.

    Which of NaN and a number is larger depends on the library, and there on which rank has it.
    """
    if world() > 1:
        both = torch.stack([-low, high]).nan_to_num_(torch.inf, torch.inf, -torch.inf)
        with _all_there():
            distributed.all_reduce(both, distributed.ReduceOp.MAX)
        low.copy_(-both[0])
        high.copy_(both[1])


def add_gradients(parameters: Iterable[torch.nn.Parameter], *others: Tensor) -> None:
    """Add up the gradients of all ranks, as one tensor for each type of number, and other tensors on the way."""
    if world() == 1:
        return
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kinds.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    flats = [torch.cat([gradient.flatten() for gradient in gradients]) for gradients in kinds.values()]
    with _all_there():
        under_way = [_begin_to_add(tensor) for tensor in (*flats, *others)]
        for sum_ in under_way:
            sum_.wait()
    for flat, gradients in zip(flats, kinds.values(), strict=True):
        sums = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [one.view_as(gradient) for one, gradient in zip(sums, gradients, strict=True)])


def numbers_of_all(*own: float) -> list[list[float]]:
    """Return the numbers that each rank has given, in double precision, by rank."""
    return ask_numbers_of_all(*own)()


def ask_numbers_of_all(*own: float) -> Callable[[], list[list[float]]]:
    """Return what waits for `numbers_of_all`: a rank that has something else to do does not wait for the others yet."""
    if world() == 1:
        return lambda: [list(own)]
    numbers = torch.tensor(own, dtype=torch.float64)
    gathered = [torch.empty_like(numbers) for _ in range(world())]
    with _all_there():
        work = distributed.all_gather(gathered, numbers, group=_on_host(), async_op=True)

    def answers() -> list[list[float]]:
        with _all_there():
            work.wait()
        return [one.tolist() for one in gathered]

    return answers


def meet() -> None:
    """Wait until every rank is here."""
    numbers_of_all()


def any_of_all(mine: bool) -> bool:
    """Return whether something holds on any rank."""
    return any(one for (one,) in numbers_of_all(mine))


def told_by_all(own: Any) -> list[Any]:
    """Return the JSON value that each rank has given, by rank."""
    if world() == 1:
        return [own]
    text = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
    lengths = [int(length) for (length,) in numbers_of_all(len(text))]
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(text)] = text
    gathered = [torch.empty_like(padded) for _ in lengths]
    with _all_there():
        distributed.all_gather(gathered, padded, group=_on_host())
    return [json.loads(bytes(one[:length].tolist())) for one, length in zip(gathered, lengths, strict=True)]


def told_by_first(own: Any) -> Any:
    """Return the JSON value that rank 0 has given."""
    return told_by_all(own if is_first() else None)[0]


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Give tensors the values they have on rank 0, in place."""
    if world() == 1:
        return
    for tensor in tensors:
        with _all_there():
            distributed.broadcast(tensor.detach(), src=0)


def joined(own: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
    """Return tensors of which each rank has some rows, whole on every rank.

    Args:
        own: those rows, on the device that ranks use; empty where there are none.
        rows: how many each rank has.
    """
    mine = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape[1:])] for tensor in own]
    forms = next(form for form in told_by_all(mine) if form)
    wholes = []
    for place, (kind, shape) in enumerate(forms):
        parts = []
        for owner, count in enumerate(rows):
            has = owner == rank() and count
            part = own[place].contiguous() if has else torch.empty(count, *shape, dtype=getattr(torch, kind))
            part = part.to(_device())
            if count:
                with _all_there():
                    distributed.broadcast(part, src=owner)
            parts.append(part)
        wholes.append(torch.cat(parts))
    return wholes


@contextmanager
def together() -> Iterator[None]:
    """Let no rank go on alone: an error of a user on one of them ends the block on all.

    Raises:
        UserError: that of this rank, or else that of the first one that has any.
    """
    own: UserError | None = None
    try:
        yield
    except UserError as failure:
        if world() == 1:
            raise
        own = failure
    parts = None if own is None else [own.what, own.where, own.allowed, own.next_step]
    said = told_by_all(parts)
    if own is not None:
        raise own
    for place, theirs in enumerate(said):
        if theirs is not None:
            what, where, allowed, next_step = theirs
            raise UserError(what, where=f"rank {place}: {where}", allowed=allowed, next_step=next_step)


def call_together(said: str) -> str:
    """Call every rank out of what it is doing: there `RanksCalled` is raised. Return what was called, by whomever.

    When this returns, and where that is raised, all ranks have met anew.
    """
    if _meeting is None:
        return said
    with _all_there():
        _meeting.store.compare_set(_meeting.call, "", said)
        agreed: str = _meeting.store.get(_meeting.call).decode()
        _meeting.again()
    return agreed


def may_tell_of_a_lost_rank() -> bool:
    """Return whether this rank is the one that tells: rank 0, or another one where that does not in some seconds."""
    if _meeting is None:
        return launched().is_first
    first, deadline = launched().is_first, time.monotonic() + _FIRST_SPEAKS
    try:
        while not first and time.monotonic() < deadline:
            if _meeting.store.add("qat_tft/told", 0):
                return False
            time.sleep(_FIRST_SPEAKS / 50)
        return int(_meeting.store.add("qat_tft/told", 1)) == 1
    except RuntimeError:  # the store was in a process that is gone
        return True


def _device() -> torch.device:
    return torch.device("cpu" if _meeting is None else _meeting.device)


def _on_host() -> distributed.ProcessGroup | None:
    return None if _meeting is None else _meeting.on_host


@contextmanager
def _all_there() -> Iterator[None]:
    try:
        yield
    except RuntimeError as failure:
        said = None if _meeting is None else _meeting.called()
        if _meeting is None or said is None:
            raise LostRankError(_reason(failure)) from None
        try:
            _meeting.again()
        except RuntimeError as further:
            raise LostRankError(_reason(further)) from None
        raise RanksCalled(said) from None


def _reason(failure: RuntimeError) -> str:
    """Return what a library said without the place in its source that comes first, and without its advice."""
    first = (str(failure).strip() or type(failure).__name__).splitlines()[0]
    return (first.rpartition("] ")[2] if first.startswith("[") else first).split(". ")[0]
