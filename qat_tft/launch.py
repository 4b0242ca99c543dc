"""How this process was started: by itself, or as one rank of several by `torchrun` or `accelerate launch`."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from qat_tft.errors import ConfigError

_RANK, _WORLD, _LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"
_MEETING = ("MASTER_ADDR", "MASTER_PORT")
_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_RESTARTS, _RUN_ID = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that were started together.

    Attributes:
        rank: its number.
        world: how many there are.
        restarts: how often the launcher has started all of them again.
    """

    rank: int = 0
    world: int = 1
    restarts: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0


def launched(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return how this process was started, from the variables that launchers set.

    Raises:
        ConfigError: several processes were started, but by no launcher that tells them how to meet.
    """
    world = max(_number(environment, name, 1) for name in (_WORLD, *_MPI))
    if world == 1:
        return Launch(restarts=_number(environment, _RESTARTS, 0))
    missing = [name for name in (_RANK, _WORLD, _LOCAL_RANK, *_MEETING) if not environment.get(name)]
    rank = _number(environment, _RANK, 0)
    if missing or not 0 <= rank < world:
        lacks = f"{', '.join(missing)} are not set" if missing else f"{_RANK} is {rank}"
        raise ConfigError(
            f"the environment tells of {world} processes, but {lacks}",
            allowed="processes that `torchrun` or `accelerate launch` started",
            next_step=f"Unset {_WORLD} and {_RANK}, or start with `torchrun --nproc-per-node {world} -m qat_tft train`",
        )
    return Launch(rank, world, _number(environment, _RESTARTS, 0))


def is_restartable(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher started this process that may start it again."""
    return _RUN_ID in environment


def launcher(environment: Mapping[str, str] = os.environ) -> str:
    """Return what tells the launcher of this process from every other one; restarts by it have the same.

    A job that was given a name of its own (`torchrun --rdzv-id`) is the same on whatever machine it goes on; without
    one, the launching process is the only thing that stays.
    """
    name = environment.get(_RUN_ID, "none")
    if name != "none":
        return f"job {name}"
    parent = psutil.Process(os.getppid())
    return f"process {parent.pid} of {platform.node()}, started at {parent.create_time():.2f}"


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    try:
        return int(text) if text else otherwise
    except ValueError:
        raise ConfigError(f"{text!r} is not a number", where=f"the environment variable {name}") from None
