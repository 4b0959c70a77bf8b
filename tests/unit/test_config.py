import dataclasses

import pytest

from conquiet.config import DbConfig, QueueConfig
from conquiet.core.operations import DbOperationType
from conquiet.errors import ConfigurationError


def required(config: type[DbConfig | QueueConfig]) -> list[str]:
    """Return the fields of a dataclass without a default."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(config)
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


@pytest.mark.spec("CQ-003.1")
def test_db_config_has_the_seeds_fields_and_defaults() -> None:
    config = DbConfig("orders")

    assert (config.table_name, config.op_type, config.id_column) == ("orders", DbOperationType.INSERT, "id")
    assert DbConfig("orders", DbOperationType.UPDATE, "number").id_column == "number", "in the seed's order"
    assert required(DbConfig) == ["table_name"]


@pytest.mark.spec("CQ-003.2", "RS-004.1")
def test_queue_config_has_the_seeds_fields_and_defaults() -> None:
    config = QueueConfig("orders", "billing", "worker-1")

    assert (config.stream_key, config.consumer_group, config.consumer_name) == ("orders", "billing", "worker-1")
    assert (config.block_ms, config.max_read_count, config.claim_idle_ms) == (5_000, 1, 60_000)
    assert required(QueueConfig) == ["stream_key", "consumer_group", "consumer_name"]


def test_fields_that_two_seeds_order_differently_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        QueueConfig("orders", "billing", "worker-1", 5_000)  # type: ignore[call-arg]


def test_a_config_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DbConfig("orders").table_name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("field", ["block_ms", "max_read_count", "claim_idle_ms", "max_payload_bytes"])
@pytest.mark.parametrize("value", [0, -5, True, 1.5, "5"])
def test_numbers_of_a_queue_config_are_positive_ints(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=field):
        QueueConfig("orders", "billing", "worker-1", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_names_of_a_queue_config_are_not_empty(position: int) -> None:
    names = ["orders", "billing", "worker-1"]
    names[position] = " "
    with pytest.raises(ConfigurationError):
        QueueConfig(*names)


@pytest.mark.parametrize(
    "settings",
    [
        {"table_name": "orders; DROP TABLE orders"},
        {"table_name": "a.b.c"},
        {"id_column": "id = 1 OR 1"},
        {"op_type": "insert"},
        {"insert_mode": "ignore"},
        {"insert_mode": "upsert"},
    ],
)
def test_a_db_config_that_could_do_harm_is_not_built(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        DbConfig(**{"table_name": "orders", **settings})  # type: ignore[arg-type]
