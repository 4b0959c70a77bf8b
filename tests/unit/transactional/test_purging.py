"""Arguments of a purger, and the pace of a purge."""

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet.errors import ConfigurationError, DatabaseUnavailableError
from conquiet.testing import wait_until
from conquiet.transactional import DatabaseRetention, Inbox, Outbox, Purger
from conquiet.transactional.purging import PurgePace


@pytest.mark.parametrize(
    "wrong",
    [
        {"inbox": "conquiet_inbox"},
        {"inbox": Inbox},
        {"inbox": Outbox()},
        {"outbox": Inbox()},
        {"inbox": Inbox(), "retention": 30},
        {"inbox": Inbox(), "is_idle": asyncio.sleep},
    ],
)
def test_a_purger_with_an_argument_of_another_type_is_refused(engine: Engine, wrong: dict[str, Any]) -> None:
    """An outbox given as the inbox lost its parked messages at the age of inbox rows."""
    with pytest.raises(ConfigurationError, match="must be"):
        Purger(engine, **wrong)


@pytest.mark.parametrize("url", ["postgresql+psycopg://u:p@127.0.0.1:1/shop", "mysql+pymysql://u:p@127.0.0.1:1/shop"])
def test_an_unavailable_database_is_an_outage_to_a_purger(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It was logged as a fault of the purge, with frames, and its end was not logged."""
    purger = Purger(create_engine(url), inbox=Inbox(), retention=DatabaseRetention(interval_s=0.01))

    with pytest.raises(DatabaseUnavailableError, match=r"server 127\.0\.0\.1:1"):
        purger.purge_now()
    with caplog.at_level(logging.WARNING), purger:
        wait_until(lambda: "DatabaseUnavailableError" in purger.health().reason)

    assert {record.name for record in caplog.records} == {"conquiet.outages"}


def test_a_pass_works_for_its_share_of_the_time() -> None:
    pace = PurgePace(0.01, 0.5, speed_up_after_s=60)
    pace.begin(0)

    assert pace.pause_s(1.0, 0.02) == pytest.approx(1.98)


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.02, 3.98), (0.1, 19.9), (10.0, 60.0)])
def test_a_slow_batch_keeps_its_share_and_pauses_a_minute_at_most(took_s: float, pause_s: float) -> None:
    pace = PurgePace(0.005, 0.25, speed_up_after_s=600)
    pace.begin(0)

    assert pace.pause_s(1.0, took_s) == pytest.approx(pause_s)


def test_the_share_doubles_with_all_the_time_that_a_pass_lasts() -> None:
    pace = PurgePace(0.1, 0.5, speed_up_after_s=60)
    pace.begin(0)

    shares = [(pace.pause_s(now, 1.0), pace.share)[1] for now in (59.9, 60.0, 61.0, 120.0, 180.0, 240.0)]

    assert shares == [0.1, 0.2, 0.2, 0.4, 0.5, 0.5]


def test_the_share_is_halved_by_every_pass_that_ends() -> None:
    pace = PurgePace(0.1, 0.5, speed_up_after_s=60)
    pace.begin(0)
    for now in (60, 120):
        pace.pause_s(now, 1.0)

    shares = []
    for _ in range(3):
        pace.caught_up()
        shares.append(pace.share)

    assert shares == [0.2, 0.1, 0.1]


def test_a_new_pass_counts_its_own_time() -> None:
    pace = PurgePace(0.1, 0.5, speed_up_after_s=60)
    pace.begin(0)
    pace.caught_up()
    pace.begin(600)

    pace.pause_s(659, 1.0)

    assert pace.share == 0.1


def test_a_share_above_the_most_is_kept() -> None:
    pace = PurgePace(1.0, 0.25, speed_up_after_s=60)
    pace.begin(0)

    assert (pace.pause_s(60, 1.0), pace.share) == (0.0, 1.0)


def test_a_table_gets_the_share_that_it_needs() -> None:
    """The share for 600 new rows a second is about a hundredth where a batch of 500 takes 9 ms."""
    pace, backlog, now, highest = PurgePace(0.005, 0.25, speed_up_after_s=60), 36_000.0, 0.0, 0.0
    for _ in range(200):
        pace.begin(now)
        while True:
            found = min(500.0, backlog)
            backlog -= found
            if found < 500:
                pace.caught_up()
                break
            pause_s = pace.pause_s(now, 0.009)
            now += 0.009 + pause_s
            backlog += 600 * (0.009 + pause_s)
        now += 60
        backlog += 600 * 60
        highest = max(highest, pace.share)

    assert highest <= 0.04
    assert backlog < 600 * 600
