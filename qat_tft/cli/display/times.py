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

    What was done before the bar began stands in the task's field `begun`.
    """

    def render(self, task: Task) -> Text:
        """Return the text."""
        done = task.completed - task.fields.get("begun", 0)
        elapsed = task.elapsed or 0.0
        if not task.total or done <= 0 or elapsed < _BEGINNING or task.completed >= task.total:
            return Text("")
        return Text(f"about {about(elapsed / done * (task.total - task.completed))} left")
