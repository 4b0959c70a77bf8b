"""The name of a consumer belongs to one live worker: the scripts that reserve and release it."""

from tests.redis_clients import RawRedis

from conquiet.redis_transport.liveness import LIVENESS_TTL_MS, RELEASE_NAME, RESERVE_NAME, liveness_key


def test_a_name_that_a_live_worker_holds_is_not_given_to_another(raw: RawRedis, stream: str) -> None:
    key = liveness_key(stream, "billing", "worker-1")

    first = raw.eval(RESERVE_NAME, 1, key, "mine", LIVENESS_TTL_MS)
    refused = raw.eval(RESERVE_NAME, 1, key, "theirs", LIVENESS_TTL_MS)

    assert (first, refused) == (1, 0)
    assert raw.get(key) == b"mine"


def test_renewing_a_name_prolongs_it(raw: RawRedis, stream: str) -> None:
    key = liveness_key(stream, "billing", "worker-1")
    raw.eval(RESERVE_NAME, 1, key, "mine", 5_000)

    renewed = raw.eval(RESERVE_NAME, 1, key, "mine", LIVENESS_TTL_MS)

    assert renewed == 1
    assert 5_000 < raw.pttl(key) <= LIVENESS_TTL_MS


def test_only_the_holder_releases_a_name(raw: RawRedis, stream: str) -> None:
    key = liveness_key(stream, "billing", "worker-1")
    raw.eval(RESERVE_NAME, 1, key, "mine", LIVENESS_TTL_MS)

    by_another = raw.eval(RELEASE_NAME, 1, key, "theirs")
    still_there = raw.exists(key)
    by_the_holder = raw.eval(RELEASE_NAME, 1, key, "mine")

    assert (by_another, still_there, by_the_holder, raw.exists(key)) == (0, 1, 1, 0)


def test_names_of_two_groups_do_not_exclude_each_other(raw: RawRedis, stream: str) -> None:
    one, other = (liveness_key(stream, group, "worker-1") for group in ("billing", "shipping"))

    assert [raw.eval(RESERVE_NAME, 1, key, key, LIVENESS_TTL_MS) for key in (one, other)] == [1, 1]
