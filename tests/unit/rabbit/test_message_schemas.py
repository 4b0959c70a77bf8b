from typing import Annotated, Any, NewType

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conquiet.errors import ConfigurationError
from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.message_schemas import Schema, SchemaRegistry, apply

UNKNOWN = Unreadable("unknown schema")
INVALID = Unreadable("message does not fit its schema")


class PydanticOrder(pydantic.BaseModel):
    number: int


class StructOrder(msgspec.Struct):
    number: int


def through(registry: SchemaRegistry, message: dict[str, Any]) -> Any:
    schema = registry.find(message)
    return schema if isinstance(schema, Unreadable) else apply(schema, message)


@pytest.mark.spec("MW-002.7")
def test_exactly_the_two_of_the_original_are_built_in() -> None:
    assert sorted(SchemaRegistry()) == ["proca:action:2", "proca:event:2"]
    assert len(SchemaRegistry(built_in=False)) == 0


@pytest.mark.spec("MW-002.7", "MW-002.8")
@pytest.mark.parametrize(
    "name", ["proca:action:1", "proca:action:3", "PROCA:ACTION:2", "", 2, True, ["proca:action:2"], {"a": 1}]
)
def test_any_other_schema_is_unknown(name: Any) -> None:
    assert SchemaRegistry().find({"schema": name}) == UNKNOWN


@pytest.mark.spec("MW-002.8")
@pytest.mark.parametrize("message", [{}, {"schema": None}])
def test_a_message_without_a_schema_is_unknown_unless_a_default_says_otherwise(message: dict[str, Any]) -> None:
    assert SchemaRegistry().find(message) == UNKNOWN
    assert isinstance(SchemaRegistry().register_default().find(message), Schema)


@pytest.mark.parametrize("kind", ["proca:action:2", "proca:event:2"])
@pytest.mark.parametrize("value", ["text", 1, True, ["list"]])
def test_a_nested_object_that_is_something_else_does_not_fit(kind: str, value: Any) -> None:
    assert through(SchemaRegistry(), {"schema": kind, "campaign": value}) == INVALID


@pytest.mark.parametrize("model", [PydanticOrder, StructOrder])
def test_models_of_others_validate_and_are_what_the_syncer_gets(model: type[Any]) -> None:
    registry = SchemaRegistry().register("shop:order:1", model)

    order = through(registry, {"schema": "shop:order:1", "number": 7})

    assert isinstance(order, model)
    assert order.number == 7
    assert through(registry, {"schema": "shop:order:1", "number": "seven"}) == INVALID


def test_a_function_may_validate_and_whatever_it_raises_refuses() -> None:
    def positive(message: dict[str, Any]) -> int:
        if message["number"] < 0:
            raise LookupError(message)
        return int(message["number"])

    registry = SchemaRegistry().register("n", positive)

    assert through(registry, {"schema": "n", "number": 3}) == 3
    assert through(registry, {"schema": "n", "number": -3}) == INVALID
    assert through(registry, {"schema": "n"}) == INVALID


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        (dict[str, int], {"number": 1}),
        (Annotated[StructOrder, "of the shop"], {"number": 1}),
        (Annotated[PydanticOrder, "of the shop"], {"number": 1}),
        (StructOrder | None, {"number": 1}),
        (NewType("ShopOrder", StructOrder), {"number": 1}),
    ],
)
def test_a_type_that_can_be_called_validates_all_the_same(model: type[Any], fits: dict[str, Any]) -> None:
    """Calling it would build something out of any message at all."""
    registry = SchemaRegistry().register_default(model)

    fitting = through(registry, fits)
    assert not isinstance(fitting, Unreadable)
    assert getattr(fitting, "number", 1) == 1
    assert through(registry, {"number": "seven"}) == INVALID


def test_a_coroutine_function_cannot_validate() -> None:
    async def checks(message: dict[str, Any]) -> dict[str, Any]:
        return message

    with pytest.raises(ConfigurationError, match="plain function"):
        SchemaRegistry().register("n", checks)


def test_a_name_is_registered_once_and_only_with_something_that_can_validate() -> None:
    registry = SchemaRegistry().register("mine").register_default()
    with pytest.raises(ConfigurationError, match="registered already"):
        registry.register("proca:action:2")
    with pytest.raises(ConfigurationError, match="registered already"):
        registry.register_default()
    with pytest.raises(ConfigurationError, match="validated by"):
        registry.register("other", 7)
    assert "mine" in registry
    assert repr(registry) == "SchemaRegistry(proca:action:2, proca:event:2, mine)"


NAMES = st.sampled_from(["campaign", "campaignId", "org", "contact"])


@settings(deadline=None)  # the first example pays for imports
@given(st.dictionaries(NAMES, st.none() | st.text() | st.integers() | st.dictionaries(NAMES, st.text())))
def test_no_message_ever_raises(message: dict[str, Any]) -> None:
    through(SchemaRegistry(), message | {"schema": "proca:action:2"})
