"""What a report cannot show, and the command that makes it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Missing:
    """A part that a run lacks.

    Attributes:
        what: a sentence that says what is missing.
        command: what makes it; empty where no command does.
    """

    what: str
    command: str = ""
