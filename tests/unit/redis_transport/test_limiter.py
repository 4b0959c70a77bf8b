"""The bound on the commands of one client in flight."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

from conquiet.redis_transport.client import SyncClient
from conquiet.redis_transport.limiter import MAX_CONCURRENT, limit
from conquiet.redis_transport.redis_url import client_from_url


@pytest.fixture
def client() -> Iterator[SyncClient]:
    made = client_from_url(SyncClient.from_url, "redis://127.0.0.1:1/0")
    yield made
    made.close()


def free_permits(client: SyncClient) -> int:
    bound: Any = limit(client, None)
    return next(count for count in range(MAX_CONCURRENT + 1) if not bound.acquire(blocking=False))


def test_one_client_has_one_bound(client: SyncClient) -> None:
    assert limit(client, None) is limit(client, "orders")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_commands_of_its_parent(client: SyncClient) -> None:
    """The threads that have sent them do not exist in the child: it would wait without end."""
    bound: Any = limit(client, None)
    for _ in range(MAX_CONCURRENT):
        bound.acquire()

    def in_child() -> None:
        raise SystemExit(free_permits(client))

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join(60)

    assert child.exitcode == MAX_CONCURRENT
