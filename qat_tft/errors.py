"""The one error tree: what a user did wrong has an exit code, everything else is a bug or a failed check."""

import errno
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

_FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a disk that is full or broken

MOST_NAMED = 5
"""How many of many things a message names."""


def some_of(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Name the first few for a message: ``a, b, c and 7 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True)
class Way:
    """A way out of an error that takes an option of the command line.

    Attributes:
        option: the option, such as ``--duplicates``.
        what: what to do with it, as a clause that names it: ``merge them with --duplicates last or mean``.
        by_training: whether a model is trained for it, so that a command without the option can say to train anew.
    """

    option: str
    what: str
    by_training: bool = True


class QatTftError(Exception):
    """Root of every error that qat-tft raises on purpose."""


class UserError(QatTftError):
    """Something the user gave cannot be used; the message says what, where, what is allowed and what to do.

    Args:
        what: what is wrong, with the offending value, as a sentence without its full stop.
        where: file, column, row or series that it concerns.
        allowed: the values that would have been accepted.
        next_step: what to do about it, whatever the command.
        ways: what else to do, where the command has the option for it.

    The parts stay readable as attributes of the same names; ``str()`` is one message made of them.
    """

    exit_code = 2

    def __init__(
        self, what: str, *, where: str = "", allowed: str = "", next_step: str = "", ways: Sequence[Way] = ()
    ) -> None:
        self.what = what
        self.where = where
        self.allowed = allowed
        self.next_step = next_step
        self.ways = tuple(ways)
        super().__init__(what)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are pickled by their positional arguments: a worker process would lose the other parts.
        return _rebuild, (type(self), self.what, self.where, self.allowed, self.next_step, self.ways)

    def __str__(self) -> str:
        return self.message([way.option for way in self.ways])

    def message(self, options: Collection[str]) -> str:
        """Return one message of all parts; of the ways, those that a command with these options can go."""
        message = f"{self.where}: {self.what}" if self.where else self.what
        sentences = [message]
        if self.allowed:
            sentences.append(f"Allowed: {self.allowed}")
        return _text([*sentences, *self._steps(options)])

    def reworded(self, words: Callable[[str], str], options: Collection[str], *, trainer: str) -> "UserError":
        """Return the error of the same kind whose parts are put into other words.

        Args:
            words: puts a part into other words.
            options: what the caller can go by of the ways; they become part of the next step.
            trainer: who trains a model for the others.
        """
        next_step = _text(self._steps(options, trainer))
        return type(self)(
            words(self.what), where=words(self.where), allowed=words(self.allowed), next_step=words(next_step)
        )

    def _steps(self, options: Collection[str], trainer: str = "`qat-tft train`") -> list[str]:
        first = [self.next_step] if self.next_step else []
        return first + _ways_out(self.ways, options, trainer, further=bool(first))


class DataError(UserError):
    """A data file cannot be read or holds values that cannot be used."""


class SchemaError(UserError):
    """A schema is malformed or does not fit the file it is used with."""


class ConfigError(UserError):
    """A setting has an impossible value."""


class RunFolderError(UserError):
    """A run folder is missing, incomplete or not ours."""


class UnwritableError(RunFolderError):
    """A place takes no file, though its disk works: what a command would only keep there can be left out."""


class PictureError(RunFolderError):
    """A picture cannot be drawn."""


class ExportError(UserError):
    """A model cannot be exported as asked."""


class OnnxFileError(UserError):
    """An ONNX file is missing, damaged or was not written by qat-tft."""


class CalibrationError(UserError):
    """Quantization ranges are missing or not finite."""


class NonFiniteLossError(UserError):
    """Training met a loss that is NaN or infinite."""


class OutOfMemoryError(UserError):
    """A training step does not fit into memory, not even with everything recomputed and one window at a time."""


class SpentProcessError(UserError):
    """A library that ran out of memory cannot be used any more in this process; another one can go on."""


class TornUpdateError(UserError):
    """Memory ran out while the optimizer wrote weights, so that the step cannot be rolled back."""


class HiddenStateError(UserError, ValueError):
    """A module keeps state of its own inside a segment that is to be recomputed."""


class SampleDataError(UserError):
    """Sample data cannot be written as asked."""


class OutputError(UserError):
    """A result cannot be written to standard output."""


class CheckFailed(QatTftError):  # noqa: N818 - the file failed; the program did not err
    """A check ran to its end and found a breach."""

    exit_code = 1


class LostRankError(QatTftError):
    """A process that trains together with this one has ended, or cannot be reached.

    Args:
        said: what the library said that carries their messages.
        next_step: what to do about it.
    """

    exit_code = 1

    def __init__(self, said: str, next_step: str = "") -> None:
        self.said = said
        way_on = next_step or "Look for its own message, or for what ended it, and start the training again."
        super().__init__(f"another rank of this training has ended or cannot be reached ({said}). {way_on}")


class TapeMismatchError(QatTftError, RuntimeError):
    """A recomputed segment asked for other fake-quantization calls than its forward had recorded."""


def cannot_write(what: str, where: str, failure: OSError, next_step: str = "") -> RunFolderError:
    """Return the error for what a file system does not take: an UnwritableError unless the disk is full or broken."""
    kind = RunFolderError if failure.errno in _FAILING else UnwritableError
    return kind(f"cannot write{what}: {failure.strerror or failure}", where=where, next_step=next_step)


def _rebuild(
    kind: type[UserError], what: str, where: str, allowed: str, next_step: str, ways: Sequence[Way]
) -> UserError:
    return kind(what, where=where, allowed=allowed, next_step=next_step, ways=ways)


def _ways_out(ways: Sequence[Way], options: Collection[str], trainer: str, *, further: bool) -> list[str]:
    here = " or ".join(way.what for way in ways if way.option in options)
    anew = " or ".join(way.what for way in ways if way.option not in options and way.by_training)
    sentences = [here, f"train anew: {trainer} can {anew}" if anew else ""]
    return [_capitalized(f"or {one}" if further or (here and one != here) else one) for one in sentences if one]


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _text(sentences: Sequence[str]) -> str:
    return " ".join(_with_full_stop(sentence) for sentence in sentences)


def _with_full_stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?", ":")) or "\n" in sentence else f"{sentence}."
