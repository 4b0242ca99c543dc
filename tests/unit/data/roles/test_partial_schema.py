"""Parts of a schema: what is named above wins, what is not named stays, and a column moves with its new role."""

import pytest

from qat_tft.data.roles.partial_schema import PartialSchema
from qat_tft.errors import SchemaError
from qat_tft.schema import Columns, Role, Schema

BASE = PartialSchema.of(
    Schema(
        time="t",
        target="y",
        id=("city",),
        static=Columns(real=("height",), category=("city",)),
        observed=Columns(real=("wind", "rain"), category=("sky",)),
        known=Columns(real=("price",), category=("hour",)),
    )
)


@pytest.mark.parametrize(
    ("above", "changes"),
    [
        pytest.param(PartialSchema(), {}, id="nothing"),
        pytest.param(PartialSchema(target="z"), {"target": "z"}, id="another target"),
        pytest.param(
            PartialSchema(target="wind"), {"target": "wind", "observed": Columns(real=("rain",), category=("sky",))},
            id="an observed column as target",
        ),
        pytest.param(
            PartialSchema(known=Columns(real=("rain",))),
            {"known": Columns(real=("rain",)), "observed": Columns(real=("wind",), category=("sky",))},
            id="an observed column as known",
        ),
        pytest.param(PartialSchema(static=Columns()), {"static": Columns()}, id="no static column"),
        pytest.param(PartialSchema(id=("city", "hour")), {"id": ("city", "hour"), "known": Columns(real=("price",))},
            id="a known column as id"),
        pytest.param(PartialSchema(static=Columns(category=("city",))), {"static": Columns(category=("city",))},
            id="an id stays one when it is named as static"),
        pytest.param(PartialSchema(observed=Columns(category=("city",))),
            {"id": (), "static": Columns(real=("height",)), "observed": Columns(category=("city",))},
            id="an id as observed"),
    ],
)  # fmt: skip
def test_named_roles_replace_and_named_columns_move(above: PartialSchema, changes: dict[str, object]) -> None:
    expected = {role: getattr(BASE, role) for role in Role} | changes
    assert above.over(BASE) == PartialSchema(**expected)


def test_roles_and_columns_that_are_given_are_told() -> None:
    part = PartialSchema(target="y", known=Columns(real=("hour",)), id=())
    assert part.given == (Role.TARGET, Role.ID, Role.KNOWN)
    assert part.columns == {"y", "hour"}


def test_a_whole_schema_needs_a_time_and_a_target() -> None:
    assert PartialSchema.of(BASE.complete()) == BASE
    with pytest.raises(SchemaError, match=r"no column is named as time and none as target.*--time and --target"):
        PartialSchema(id=("city",)).complete()
    with pytest.raises(SchemaError, match=r"data: no column is named as target\. Add --target"):
        PartialSchema(time="t").complete(where="data")
