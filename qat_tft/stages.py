"""How far a work has come: told by the work, shown by whoever wants to."""

from collections.abc import Callable

Told = Callable[[str, int, int], None]
"""Is told what begins now, and how much of how much is done."""


def nobody(what: str, done: int, total: int) -> None:
    """Drop what is told."""


class Stages:
    """Tells of the stages of a work as each begins.

    Args:
        told: is told.
        total: how many there will be.
    """

    def __init__(self, told: Told, total: int) -> None:
        self._told, self._total, self._begun = told, total, 0

    def begin(self, what: str) -> None:
        """Tell that the next stage begins, so that those before it are done."""
        self._told(what, self._begun, self._total)
        self._begun += 1
