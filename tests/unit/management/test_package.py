"""First mistakes with the functions for operators. They are refused before anything is sent."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from conquiet.errors import ConfigurationError
from conquiet.management import (
    JobAdmin,
    JobFilter,
    PendingFilter,
    RedisAdmin,
    describe_stream,
    enqueue_all,
    list_pending,
    list_streams,
    reclaim,
    remove_consumer,
    trim,
)

CLIENT: Any = redis.Redis.from_url("redis://127.0.0.1:1/0")
IDLE = PendingFilter(min_idle_s=1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: list_streams(CLIENT),
        lambda: describe_stream(CLIENT, "orders"),
        lambda: list_pending(CLIENT, "orders", "billing"),
        lambda: reclaim(CLIENT, "orders", "billing", IDLE),
        lambda: trim(CLIENT, "orders"),
        lambda: remove_consumer(CLIENT, "orders", "billing", "host-7"),
        lambda: list(enqueue_all(CLIENT, "orders", [{}])),
    ],
)
def test_a_client_in_place_of_the_admin_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"got redis\.client\.Redis\. Pass RedisAdmin\(client\)"):
        call()


@pytest.mark.parametrize("limits", [{"limit": 0}, {"limit": "5"}, {"max_keys": -1}])
def test_a_limit_that_is_no_positive_number_is_refused(limits: dict[str, Any]) -> None:
    with RedisAdmin(CLIENT) as server, pytest.raises(ConfigurationError, match="must be a positive integer"):
        list_streams(server, **limits)


@pytest.mark.parametrize("number", [-1, "2", True])
def test_a_number_of_deliveries_that_is_none_is_refused(number: Any) -> None:
    with pytest.raises(ConfigurationError, match="min_deliveries must be a whole number"):
        PendingFilter(min_deliveries=number)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda jobs: jobs.list("asleep"), r"JobPhase is one of waiting, .*; got 'asleep'"),
        (lambda jobs: jobs.list("waiting", "order.paid"), r"where must be a JobFilter, got a str; .* selects all"),
        (lambda jobs: jobs.bulk("stop", "waiting"), r"BulkAction is one of cancel, run-now, .*; got 'stop'"),
        (
            lambda jobs: jobs.bulk("cancel", "waiting", {"event": "order.paid"}),
            r"where must be a JobFilter, got a dict",
        ),
        (lambda jobs: jobs.bulk("cancel", "waiting", on_progress=1), "on_progress must be a function"),
    ],
)
async def test_a_phase_an_action_or_a_filter_that_is_none_is_refused(
    call: Callable[[JobAdmin], Awaitable[object]], words: str
) -> None:
    async with redis.asyncio.Redis.from_url("redis://127.0.0.1:1/0") as client:
        with pytest.raises(ConfigurationError, match=words):
            await call(JobAdmin(client, "orders"))


def test_a_filter_of_jobs_names_the_condition_that_is_wrong() -> None:
    with pytest.raises(ConfigurationError, match="min_age_s must be a number of seconds"):
        JobFilter(min_age_s="60")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, redis.asyncio.RedisCluster])
def test_a_client_that_decodes_replies_is_refused(kind: Any) -> None:
    """A message need not be text: the first reply of bytes would end in a TypeError."""
    with pytest.raises(ConfigurationError, match=r"the client decodes replies.* without decode_responses"):
        JobAdmin(kind(host="127.0.0.1", port=1, decode_responses=True), "orders")
