"""Valid settings, and the condition of the warning."""

from typing import Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.processor import ProcessorSettings
from conquiet.queue.retention import WARN_FROM, GrowthWatch, HeldBackWatch, Retention
from conquiet.runtime.settings import RuntimeSettings


@pytest.mark.parametrize(
    "options", [{"keep_s": -1}, {"keep_min": -1}, {"keep_min": True}, {"keep_min": 1.5}, {"interval_s": 0}]
)
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Retention(**options)


@pytest.mark.parametrize("settings", [ProcessorSettings, RuntimeSettings])
def test_only_a_retention_or_none_is_one(settings: Any) -> None:
    assert settings(retention=None).retention is None
    with pytest.raises(ConfigurationError):
        settings(retention=True)


def test_a_processor_has_one_by_default_and_an_engine_has_none() -> None:
    assert ProcessorSettings().retention == Retention()
    assert RuntimeSettings().retention is None


def test_growth_is_reported_once_and_only_from_the_limit_on() -> None:
    watch = GrowthWatch()

    seen = [watch.observe(done) for done in (0, WARN_FROM - 1, WARN_FROM, WARN_FROM + 1)]

    assert seen == [False, False, True, False]


def test_a_stream_that_is_trimmed_now_and_then_is_not_reported() -> None:
    watch = GrowthWatch()

    assert [watch.observe(done) for done in (WARN_FROM, 5, 2 * WARN_FROM, 3 * WARN_FROM)] == [False] * 4


def test_a_long_stream_at_the_start_is_reported_only_when_it_grows() -> None:
    watch = GrowthWatch()

    assert [watch.observe(done) for done in (WARN_FROM, WARN_FROM, WARN_FROM + 1)] == [False, False, True]


def test_a_group_that_stands_still_is_reported_once_for_each_place() -> None:
    watch = HeldBackWatch(warn_after_s=600)

    seen = [
        watch.observe(needed, WARN_FROM, now)
        for needed, now in [("1-0", 0), ("1-0", 599), ("1-0", 600), ("1-0", 700), ("2-0", 800), ("2-0", 1_400)]
    ]

    assert seen == [False, False, True, False, False, True]
    assert not HeldBackWatch(warn_after_s=0).observe("1-0", WARN_FROM - 1, 5)
