"""Settings of the engine are checked when they are built."""

from typing import Any

import pytest

from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError
from conquiet.runtime.settings import RuntimeSettings, require_streams, settings_from


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_ms": 0}, {"claim_idle_ms": True}, {"prefetch": -1}, {"prefetch": False}, {"max_deliveries": 0},
        {"max_lease_s": 0}, {"grace_s": -1}, {"max_reconnects": 0}, {"reconnect": 3}, {"max_payload_bytes": "1"},
        {"priorities": {"s": True}}, {"priorities": {"": 1}}, {"priorities": ["s"]}, {"priorities": None},
        {"recreate_group": "no"}, {"recreate_group": 1}, {"claim_idle_ms": 86_400_001}, {"grace_s": float("nan")},
        {"max_lease_s": float("inf")},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RuntimeSettings(**wrong)


@pytest.mark.parametrize(
    ("settings", "options", "told"),
    [
        (RuntimeSettings(), {"grace_s": 1}, "not both"),
        ({}, {}, "must be a RuntimeSettings"),
        (None, {"grace_s": 1, "grase_s": 2}, "no such option of runtime.Consumer: grase_s$"),
    ],
)
def test_settings_are_given_together_or_one_by_one_and_by_their_names(
    settings: Any, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        settings_from(settings, options)


def test_an_extension_may_take_a_sixth_of_the_claim_time() -> None:
    """Of three that a lease can miss, two may wait for servers that do not reply."""
    assert RuntimeSettings(claim_idle_ms=30_000).heartbeat_timeout_s == 5.0
    assert RuntimeSettings(claim_idle_ms=600_000).heartbeat_timeout_s == 10.0
    assert RuntimeSettings(claim_idle_ms=300).heartbeat_timeout_s == 1.0


def test_waiting_times_have_the_defaults_of_the_queue() -> None:
    settings = RuntimeSettings()
    queue = QueueConfig("s", "g", "c")

    assert (settings.block_ms, settings.claim_idle_ms) == (queue.block_ms, queue.claim_idle_ms) == (5_000, 60_000)
    assert settings.heartbeat_s == 20
    assert settings.slice_ms == 1_000
    assert RuntimeSettings(claim_idle_ms=400).slice_ms == 100


@pytest.mark.parametrize("wrong", ["s", [], None, ["s", "s"], [""], [1], ["\ud800"]])
def test_streams_must_be_a_list_of_different_names(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        require_streams(wrong)
