"""Columns of a progress bar that say times in words."""

from rich.progress import ProgressColumn, Task
from rich.text import Text

from qat_tft.durations import about, exactly

_BEGINNING = 2.0
"""Seconds within which no time is guessed."""


class Elapsed(ProgressColumn):
    """How long it has taken: `2 min 10 s`."""

    def render(self, task: Task) -> Text:
        """Return the text."""
        return Text(exactly(task.elapsed or 0.0))


class TimeLeft(ProgressColumn):
    """How long it will take: `about 3 minutes left`, by the mean pace; nothing before there is one.

    Fields of the task: `begun`, what was done before the bar began; `at`, after how many seconds something was last
    done, if not just now; `equal`, False where its parts take so different times that no guess holds.
    """

    def render(self, task: Task) -> Text:
        """Return the text."""
        done = task.completed - task.fields.get("begun", 0)
        elapsed = task.elapsed or 0.0
        if not task.total or done <= 0 or elapsed < _BEGINNING or task.completed >= task.total:
            return Text("")
        if not task.fields.get("equal", True):
            return Text("")
        at = task.fields.get("at", elapsed)
        left = at / done * (task.total - task.completed) - (elapsed - at)
        return Text(f"about {about(max(left, 0.0))} left")
