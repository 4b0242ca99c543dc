"""What came of many trials of one kind: how many there were, and which went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Trials of one kind.

    Attributes:
        wrong: what a failed trial is called in the output: `mishandled`, `lost`, `different`.
        tried: number of trials.
        failures: name of each failed trial, and what was wrong with it, one line each.
    """

    wrong: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, problem: str = "") -> None:
        """Count a trial; with a problem it failed."""
        self.tried += 1
        if problem:
            self.failures.append(f"{name}: {problem}")

    def to_json(self) -> dict[str, int]:
        """Return the number of trials and of those that failed."""
        return {"tried": self.tried, self.wrong: len(self.failures)}
