"""What is done to rows between the file and the windows: the same in training, prediction and backtest."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

DuplicatePolicy = Literal["error", "last", "mean"]
GapPolicy = Literal["error", "ignore", "fill", "split"]


@dataclass(frozen=True)
class Preparation:
    """The declared policies of a run. They travel with it, so that its file meets rows as training did.

    Attributes:
        duplicates: rows of the same series and time: ``error`` refuses them, ``last`` keeps the one that stands
            last in the files, ``mean`` averages real columns and keeps the last category.
        gaps: time steps without a row: ``error`` refuses them, ``ignore`` takes the next row as the next step,
            ``fill`` inserts rows, ``split`` lets no window span a gap.
    """

    duplicates: DuplicatePolicy = "error"
    gaps: GapPolicy = "ignore"

    def __post_init__(self) -> None:
        for name, policies in (("duplicates", DuplicatePolicy), ("gaps", GapPolicy)):
            if getattr(self, name) not in get_args(policies):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {', '.join(get_args(policies))}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``from_json`` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "Preparation":
        """The inverse of ``to_json``; None, and a key that is not there, stand for the default.

        Raises:
            ValueError: a key or a policy that this version does not know.
        """
        given = dict(value or {})
        unknown = sorted(given.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"preparation {', '.join(unknown)} is not known to this version")
        return cls(**given)


AS_IT_IS = Preparation()
"""Nothing is done: what the model cannot take is refused."""
