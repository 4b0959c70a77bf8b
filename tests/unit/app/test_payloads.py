import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from conquiet.app.payloads import PayloadModel, encode_untyped, is_model
from conquiet.errors import ConfigurationError, PayloadError


class Currency(enum.Enum):
    EUR = "EUR"


class Paid(msgspec.Struct):
    order: int
    amount: decimal.Decimal
    currency: Currency
    at: dt.datetime
    id: uuid.UUID


@dataclasses.dataclass
class PaidData:
    order: int
    note: str = ""


class PaidDict(TypedDict):
    order: int


class PaidModel(pydantic.BaseModel):
    order: int
    amount: decimal.Decimal = decimal.Decimal(0)


A_PAID = Paid(
    1,
    decimal.Decimal("19.99"),
    Currency.EUR,
    dt.datetime(2026, 11, 17, 2, 0, tzinfo=dt.UTC),
    uuid.UUID("12345678-1234-5678-1234-567812345678"),
)


@pytest.mark.parametrize(
    ("model", "value"),
    [(Paid, A_PAID), (PaidData, PaidData(1, "x")), (PaidModel, PaidModel(order=1, amount=decimal.Decimal("1.5")))],
)
def test_an_encoded_object_is_decoded_to_an_equal_one(model: type[Any], value: Any) -> None:
    payload = PayloadModel("paid", model)

    encoded = payload.encode(value)

    assert msgspec.json.decode(msgspec.json.encode(encoded)) == encoded, "it is JSON as it stands"
    assert payload.decode(encoded) == value


@pytest.mark.parametrize("model", [dict, dict[str, Any], PaidDict, Paid, PaidData, PaidModel])
def test_each_kind_of_model_is_recognised(model: type[Any]) -> None:
    assert is_model(model)


@pytest.mark.parametrize("other", [int, str, list, list[int], object, None, 5, "text"])
def test_a_value_that_is_not_a_json_object_fits_no_model(other: Any) -> None:
    assert not is_model(other)


@pytest.mark.parametrize(
    ("model", "data", "path", "reason"),
    [
        (PaidData, {"order": "secret"}, "$.order", "Expected `int`"),
        (PaidData, {"note": "secret"}, "$", "Object missing required field `order`"),
        (PaidDict, {"order": "secret"}, "$.order", "Expected `int`"),
        (PaidModel, {"order": "secret"}, "$.order", "int_parsing"),
        (PaidModel, {}, "$.order", "missing"),
    ],
)
def test_a_field_that_does_not_fit_is_named_without_its_value(
    model: type[Any], data: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        PayloadModel("paid", model).decode(data)

    assert f"field {path}: {reason}" in str(caught.value)
    assert caught.value.path == path
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("field", ["amount", "currency", "at", "id"])
def test_a_value_that_cannot_be_parsed_stays_out_of_the_error(field: str) -> None:
    payload = PayloadModel("paid", Paid)
    data = payload.encode(A_PAID) | {field: "secret"}

    with pytest.raises(PayloadError) as caught:
        payload.decode(data)

    assert f"$.{field}" in str(caught.value)
    assert "secret" not in str(caught.value)


class Customer(msgspec.Struct):
    email: str

    def __post_init__(self) -> None:
        if "@" not in self.email:
            raise ValueError(f"{self.email} is no address")


@dataclasses.dataclass
class CustomerData:
    email: str

    def __post_init__(self) -> None:
        if "@" not in self.email:
            raise ValueError(f"{self.email} is no address")


@pytest.mark.parametrize("model", [Customer, CustomerData])
def test_a_check_of_the_model_that_quotes_a_value_is_not_quoted(model: type[Any]) -> None:
    with pytest.raises(PayloadError, match=r"does not fit Customer\w*: field \$: invalid value$") as caught:
        PayloadModel("paid", model).decode({"email": "jane.doe"})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_struct_with_a_wrong_field_is_refused_when_it_is_emitted() -> None:
    wrong = PaidData("one")  # type: ignore[arg-type]

    with pytest.raises(PayloadError, match=r"field \$.order: Expected `int`"):
        PayloadModel("paid", PaidData).encode(wrong)


def test_an_object_of_another_type_is_refused_when_it_is_emitted() -> None:
    with pytest.raises(PayloadError, match="carries Paid, got an object of type PaidData"):
        PayloadModel("paid", Paid).encode(PaidData(1))


def test_a_mapping_that_fits_may_be_emitted_as_it_is() -> None:
    assert PayloadModel("paid", PaidData).encode({"order": 1}) == {"order": 1}
    with pytest.raises(PayloadError):
        PayloadModel("paid", PaidData).encode({"order": "1"})


def test_a_model_that_json_cannot_carry_is_refused_at_registration() -> None:
    class Odd(msgspec.Struct):
        callback: type

    with pytest.raises(ConfigurationError, match=r"the payload model .*Odd of event 'paid' cannot be built from JSON"):
        PayloadModel("paid", Odd)


def test_models_of_events_that_are_not_known_here_are_encoded_too() -> None:
    assert encode_untyped(PaidData(1, "x")) == {"order": 1, "note": "x"}
    assert encode_untyped(PaidModel(order=2)) == {"order": 2, "amount": "0"}
    with pytest.raises(PayloadError, match="got an object of type int"):
        encode_untyped(5)
