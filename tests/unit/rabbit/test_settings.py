import math
import socket
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.rabbit import (
    DeliveryFilter,
    Publisher,
    RabbitConsumer,
    RabbitDeadLetters,
    RabbitSettings,
    SchemaRegistry,
    run_process,
    sync_queue,
)
from conquiet.rabbit.address import Address
from conquiet.rabbit.settings import seed_defaults

URL = "amqp://guest:s3cret@127.0.0.1:1/%2F"


def plain(_: object) -> bool:
    return True


@pytest.mark.spec("MW-001.9", "MW-001.10")
@pytest.mark.parametrize("name", ["concurrency", "prefetch", "max_retries"])
@pytest.mark.parametrize("value", [0, -1, True, False, 1.0, 2.5, "3", [1]])
def test_only_positive_integers_pass_and_all_else_throws_at_once(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        RabbitConsumer(URL, "work", plain, **{name: value})
    with pytest.raises(ConfigurationError, match=name):
        sync_queue(URL, "work", plain, **{name: value})
    assert run_process(URL, "work", plain, **{name: value}) == 2
    if name == "concurrency":
        with pytest.raises(ConfigurationError, match=name):
            RabbitConsumer(URL, "work", plain).set_concurrency(value)


@pytest.mark.spec("MW-001.9")
def test_concurrency_cannot_be_nothing() -> None:
    with pytest.raises(ConfigurationError, match="concurrency"):
        RabbitSettings(concurrency=None)  # type: ignore[arg-type]


@pytest.mark.spec("MW-001.7")
def test_prefetch_is_twice_the_concurrency_unless_set() -> None:
    assert RabbitSettings().window == 2
    assert RabbitSettings(concurrency=7).window == 14
    assert RabbitSettings(concurrency=7, prefetch=3).window == 3


@pytest.mark.spec("MW-001.8")
def test_the_consumer_tag_is_host_and_tag_or_package() -> None:
    assert RabbitConsumer(URL, "work", plain).consumer_tag == f"{socket.gethostname()}.conquiet"
    assert RabbitConsumer(URL, "work", plain, tag="crm").consumer_tag == f"{socket.gethostname()}.crm"


@pytest.mark.spec("MW-001.10")
@pytest.mark.parametrize(
    "options",
    [
        {"tag": ""},
        {"tag": "a\nb"},
        {"prefetch": 70_000},
        {"settle": "sometimes"},
        {"exhausted": "explode"},
        {"poison_guard": 1},
        {"dead_letter": "yes"},
        {"grace_s": -1},
        {"connect_timeout_s": 0},
        {"heartbeat_s": 0},
        {"max_reconnects": 0},
        {"max_requeues": 0},
        {"max_body_bytes": 0},
        {"key_store": object()},
        {"schemas": {}},
        {"reconnect": 3},
        {"require_dead_letter": True},
        {"tag": "x" * 255},
        {"tag": "\ud800"},
        {"heartbeat_s": 65_536},
        {"management_url": "localhost:15672"},  # would contact another server on this machine
        {"management_url": 7},
        {"management_url": "http://localhost:99999"},
        {"management_url": "https://localhost?cacertfile=/no/such.pem"},
        {"ssl_context": True},
    ],
)
def test_every_other_setting_is_checked_too(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RabbitConsumer(URL, "work", plain, **options)


@pytest.mark.parametrize("url", ["", "http://host", "amqp//host", None, "amqp://host:notaport/"])
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Address((url,))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://user:12/s3cret@host/", "%2F"),
        ("amqp://user:12?s3cret@host/", "%3F"),
        ("amqp://user:12#s3cret@host/", "%23"),
        ("amqp://user:s3cret/x@host/", "%2F"),
        ("amqp://host/a@b", "%40"),
        ("amqp://user:s3cret@host/a/b", "%2F"),
        ("amqp://user:s3cret@host//", "%2F"),
        ("amqp://user:s3cret@host/a/", "%2F"),
        ("amqp://user:s3cret@host/?heartbeat=0", "heartbeat"),
        ("amqp://user:s3cret@[host/", "cannot be parsed"),
        ("amqp://user:pass@host:s3cret/", "cannot be parsed"),
    ],
)
def test_an_ambiguous_url_is_refused_with_the_fix(url: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Address((url,))

    assert expected in str(caught.value)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "vhost"),
    [
        ("amqp://h", "/"),
        ("amqp://h/", "/"),
        ("amqp://h/%2F", "/"),
        ("amqp://h/a%2Fb", "a/b"),
        ("amqp://h/a%40b", "a@b"),
    ],
)
def test_the_virtual_host_is_what_stands_behind_the_slash(url: str, vhost: str) -> None:
    assert Address((url,)).vhost == vhost


def test_a_heartbeat_in_the_url_counts_unless_another_is_set() -> None:
    assert Address(("amqp://h/?heartbeat=5",)).parameters(0).heartbeat == 5
    assert Address(("amqp://h/?heartbeat=0",), heartbeat_s=7).parameters(0).heartbeat == 7


def test_no_repr_shows_the_password() -> None:
    consumer = RabbitConsumer(URL, "work", plain, management_url="http://guest:s3cret@127.0.0.1:1")

    assert "s3cret" not in repr(consumer) + repr(consumer._settings) + repr(consumer._address)
    assert repr(consumer) == "RabbitConsumer(amqp://***@127.0.0.1:1/%2F, 'work', new)"


@pytest.mark.parametrize("url", [None, 7, True, [], [None], {}])
@pytest.mark.parametrize(
    "kind", [lambda url: RabbitConsumer(url, "work", plain), Publisher, lambda url: RabbitDeadLetters(url, "dead")]
)
def test_an_address_is_a_text_or_a_list_of_them(kind: Callable[[Any], object], url: Any) -> None:
    with pytest.raises(ConfigurationError):
        kind(url)


@pytest.mark.parametrize("seconds", [None, True, 0, -1, math.inf, math.nan, "5"])
@pytest.mark.parametrize("kind", [Publisher, lambda url, **options: RabbitDeadLetters(url, "dead", **options)])
def test_a_timeout_must_be_a_positive_number(kind: Any, seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s"):
        kind(URL, timeout_s=seconds)


@pytest.mark.parametrize(
    "order",
    [
        {"to": 7},
        {"to": "x" * 256},
        {"to": "\ud800"},
        {"limit": True},
        {"rate_per_s": True},
        {"rate_per_s": "5"},
        {"rate_per_s": math.nan},
        {"on_progress": 7},
    ],
)
async def test_a_replay_is_checked_before_a_message_is_taken(order: Any) -> None:
    with pytest.raises(ConfigurationError):
        await RabbitDeadLetters(URL, "dead").replay(DeliveryFilter(), **order)


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ({"where": "all"}, "where must be a DeliveryFilter, got a str"),
        ({"where": None}, "where must be a DeliveryFilter, got nothing"),
        ({"where": DeliveryFilter(), "limit": -1}, "limit must be a positive integer"),
        ({"where": DeliveryFilter(), "limit": "3"}, "limit must be a positive integer"),
    ],
)
@pytest.mark.parametrize("call", ["list", "discard", "replay"])
async def test_a_selection_is_checked_before_a_message_is_taken(call: str, selection: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        await getattr(RabbitDeadLetters(URL, "dead"), call)(**selection)


@pytest.mark.parametrize("queue", ["", "  ", None, "a\nb", "x" * 256, "\ud800"])
def test_a_queue_needs_a_name(queue: Any) -> None:
    with pytest.raises(ConfigurationError, match="queue"):
        RabbitConsumer(URL, queue, plain)


def test_a_syncer_must_be_callable() -> None:
    with pytest.raises(ConfigurationError, match="syncer"):
        RabbitConsumer(URL, "work", None)  # type: ignore[arg-type]


def test_a_generic_consumer_accepts_any_object_and_keeps_what_it_gives_up() -> None:
    config = RabbitSettings()

    assert (config.schemas, config.exhausted, config.without_dead_letters) == (None, "move", "move")


@pytest.mark.spec("MW-002.7", "MW-002.3", "MW-005.3")
def test_sync_queue_has_the_schemas_and_the_settlements_of_the_seed() -> None:
    config = RabbitSettings(**seed_defaults())

    assert list(config.schemas or ()) == ["proca:action:2", "proca:event:2"]
    assert (config.exhausted, config.without_dead_letters) == ("drop", "discard")
    assert seed_defaults()["schemas"] is not seed_defaults()["schemas"]


def test_a_key_store_without_schemas_is_refused() -> None:
    """Any JSON object would be accepted as it is, and personalInfo would stay closed without a word."""
    store: Any = type("Store", (), {"private_key": lambda _self, _public: None})()

    with pytest.raises(ConfigurationError, match="schemas=SchemaRegistry"):
        RabbitSettings(key_store=store)
    RabbitSettings(key_store=store, schemas=SchemaRegistry())


def test_tls_verifies_by_default_and_names_the_host() -> None:
    import ssl

    parameters = Address(("amqps://broker.example.org/%2F",)).parameters(0)

    assert parameters.ssl_options.context.verify_mode is ssl.CERT_REQUIRED
    assert parameters.ssl_options.context.check_hostname is True
    assert parameters.ssl_options.server_hostname == "broker.example.org"


def test_a_tls_context_never_leads_to_a_plain_connection() -> None:
    import ssl

    context = ssl.create_default_context()

    with pytest.raises(ConfigurationError, match="nothing would be encrypted"):
        Publisher(URL, ssl_context=context)
    Publisher(["amqps://one", "amqp://127.0.0.1"], ssl_context=context)


def test_the_nodes_of_a_cluster_are_tried_in_turn() -> None:
    address = Address(("amqp://one", "amqp://two"))

    assert [address.parameters(attempt).host for attempt in range(3)] == ["one", "two", "one"]
