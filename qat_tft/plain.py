"""Dataclasses as plain JSON values and back: pydantic knows every field's type, and checks what comes back."""

from __future__ import annotations

from typing import Any, Self

from pydantic import TypeAdapter


class Plain:
    """A base of dataclasses whose JSON object has their fields and nothing else: tuples are lists, paths are texts."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `from_json` reads them back."""
        value: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json")
        return value

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The inverse of `to_json`; a field that is not there takes its default.

        Raises:
            ValueError: a field is missing or of another type, or one that is not known is there.
        """
        made: Self = TypeAdapter(cls).validate_python(value)
        return made
