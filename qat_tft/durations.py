"""Lengths of time as people say them."""

_UNITS = ((86_400, "day", "d"), (3_600, "hour", "h"), (60, "minute", "min"), (1, "second", "s"))
_TENTHS_BELOW = 60


def exactly(seconds: float) -> str:
    """Return a length of time in its largest unit and the next one: `2 min 10 s`, `3 h 5 min`, `41.2 s`."""
    if round(seconds, 1) < _TENTHS_BELOW:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    first = next(place for place, (size, _, _) in enumerate(_UNITS) if whole >= size)
    parts = []
    for size, _, unit in _UNITS[first : first + 2]:
        number, whole = divmod(whole, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts)


def about(seconds: float) -> str:
    """Return a length of time in its largest unit: `3 minutes`, `1 hour`."""
    for size, unit, _ in _UNITS:
        number = round(seconds / size)
        if seconds >= size and number:
            return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
    return "1 second"


def ago(seconds: float) -> str:
    """Return how long ago something was: `3 days ago`; `just now` below a minute."""
    return "just now" if seconds < 60 else f"{about(seconds)} ago"
