"""Public signatures have one unit of time: seconds as float, with the suffix ``_s``."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import api_docs
import pytest

from conquiet.config import QueueConfig
from conquiet.management import JobAdmin, PendingFilter, list_streams
from conquiet.management.doctor.redis_facts import RedisLimits
from conquiet.processor import DeadLetters, Jobs, ProcessorSettings
from conquiet.queue import StreamProducer
from conquiet.rabbit import RabbitSettings
from conquiet.runtime import Consumer, RuntimeSettings
from conquiet.transactional import DatabaseRetention, Inbox, Outbox

TIME = re.compile(
    r"(?:^|_)(timeout|delay|interval|ttl|wait|idle|age|grace|lease|duration|expiry|period|seconds|pause)(?:_|$)"
)
NAMED_BY_A_SEED = {"block_ms", "claim_idle_ms", "min_idle_ms", "lock_timeout"}
WHOLE_SECONDS = {"heartbeat_s"}
"""AMQP negotiates an integer."""
MILLISECONDS = {
    "after_ms", "at_ms", "before_ms", "created_ms", "delay_until_ms", "due_ms", "emitted_ms", "failed_ms",
    "first_failed_ms", "first_ms", "instant_ms", "last_ms", "now_ms", "reserved_ms", "since_ms", "times_ms",
    "unknown_since_ms", "until_ms",  # moments, as Redis counts them: the first part of a stream id
    "duration_ms", "ended_ms", "keep_result_ms",  # fields of stored records
    "wait_ms",  # StreamReader.read passes it to Redis as BLOCK
}  # fmt: skip


def parameters() -> Iterator[tuple[str, str, str]]:
    """Yield place, name and annotation of every parameter of the public names."""
    for module, name, value in api_docs.public_objects():
        places: list[tuple[str, Any]] = [(name, value)] if inspect.isfunction(value) else []
        if inspect.isclass(value):
            places += [(name, value)] if api_docs.constructor(value) is not None else []
            own = {method: getattr(function, "__func__", function) for method, function in vars(value).items()}
            places += [
                (f"{name}.{method}", function)
                for method, function in own.items()
                if inspect.isfunction(function) and not method.startswith("_")
            ]
        for place, function in places:
            for parameter in inspect.signature(function).parameters.values():
                yield f"{module}.{place}", parameter.name, annotation_of(parameter)


def annotation_of(parameter: inspect.Parameter) -> str:
    written = parameter.annotation
    return written if isinstance(written, str) else inspect.formatannotation(written)


def mistake_in(name: str, annotation: str) -> str:
    """Return what is wrong with the unit of a parameter, or nothing."""
    is_number = re.search(r"\b(int|float)\b", annotation) is not None
    if "timedelta" in annotation:
        return "a timedelta"
    if name in NAMED_BY_A_SEED | WHOLE_SECONDS | MILLISECONDS:
        return ""
    if name.endswith("_ms"):
        return "milliseconds"
    if name.endswith("_s") and not name.endswith("_per_s") and "float" not in annotation:
        return "not a float"
    return "no unit" if is_number and TIME.search(name) and not name.endswith("_s") else ""


@pytest.mark.parametrize(
    ("name", "annotation", "mistake"),
    [
        ("timeout", "float | None", "no unit"),
        ("lock_timeout_s", "int | None", "not a float"),
        ("max_wait_ms", "int", "milliseconds"),
        ("after", "datetime.timedelta", "a timedelta"),
        ("timeout_s", "float", ""),
        ("wait", "bool", ""),
        ("max_messages", "int", ""),
    ],
)
def test_each_mistake_with_a_unit_is_found(name: str, annotation: str, mistake: str) -> None:
    assert mistake_in(name, annotation) == mistake


def test_public_times_are_seconds_as_float_with_the_suffix_s() -> None:
    seen = list(parameters())

    assert len(seen) > 1000
    assert [
        f"{place}({name}: {kind}): {wrong}" for place, name, kind in seen if (wrong := mistake_in(name, kind))
    ] == []


def test_no_exception_to_the_unit_is_out_of_date() -> None:
    names = {name for _, name, _ in parameters()}

    assert (NAMED_BY_A_SEED | WHOLE_SECONDS | MILLISECONDS) - names == set()


@pytest.mark.parametrize(
    ("name", "places", "default"),
    [
        ("claim_idle_ms", [QueueConfig, RuntimeSettings, Consumer], 60_000),
        ("max_deliveries", [RuntimeSettings, RedisLimits], 20),
        ("max_reconnects", [RuntimeSettings, RabbitSettings], 30),
        ("grace_s", [RuntimeSettings, RabbitSettings], 25.0),
        ("max_payload_bytes", [QueueConfig, RuntimeSettings, ProcessorSettings, StreamProducer], 1_048_576),
        ("batch", [DatabaseRetention, Inbox.purge, Outbox.purge], 500),
        ("limit", [DeadLetters.list, Jobs.list, JobAdmin.list, list_streams, PendingFilter, Outbox.parked], 100),
    ],
)
def test_one_idea_has_one_default(name: str, places: list[Callable[..., object]], default: float) -> None:
    assert {inspect.signature(place).parameters[name].default for place in places} == {default}
