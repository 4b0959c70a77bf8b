"""Replies of stream commands."""

from typing import Any

import pytest

from conquiet.redis_transport.replies import (
    ConsumerInfo,
    Pending,
    StreamEntry,
    consumer_infos,
    entries,
    group_lag,
    group_row,
    info_fields,
    pending_rows,
    read_entries,
    server_ms,
)

ENTRY = [b"1-1", [b"data", b"{}"]]


@pytest.mark.parametrize("nothing", [None, []])
def test_an_empty_reply_is_nothing(nothing: Any) -> None:
    assert read_entries(nothing) == []
    assert entries(nothing) == []
    assert pending_rows(nothing) == []


def test_the_entries_of_a_read() -> None:
    assert read_entries([[b"orders", [ENTRY]]]) == [StreamEntry("1-1", [b"data", b"{}"])]


@pytest.mark.parametrize("gone", [None, []])
def test_a_deleted_entry_is_not_an_empty_message(gone: Any) -> None:
    assert entries([[b"1-1", gone], None, ENTRY]) == [StreamEntry("1-1", None), StreamEntry("1-1", [b"data", b"{}"])]


def test_rows_of_pending_and_of_consumers() -> None:
    assert pending_rows([[b"1-1", b"bob", 70, 3]]) == [Pending("1-1", b"bob", 70, 3)]
    flat = [b"name", b"bob", b"pending", 2, b"idle", 50, b"inactive", 60]
    assert consumer_infos([flat]) == [ConsumerInfo(b"bob", 2, 50)]


def test_the_row_of_a_group_is_found_by_its_name() -> None:
    rows = [[b"name", b"a", b"lag", 1], [b"name", b"b", b"lag", 2]]

    assert group_row(rows, "b") == {b"name": b"b", b"lag": 2}
    assert group_row(rows, "c") is None


def test_a_lag_is_corrected_only_where_it_is_provably_wrong() -> None:
    assert group_lag({b"lag": 7}, length=3) == 3
    assert group_lag({b"lag": 7}) == 7
    assert group_lag({b"lag": None}, waiting=False) == 0
    assert group_lag({b"lag": None}, length=3) is None
    assert group_lag({}) is None


def test_the_servers_clock_is_read_in_milliseconds() -> None:
    assert server_ms([b"1763244000", b"123999"]) == 1_763_244_000_123


def test_paths_in_info_need_not_be_utf_8() -> None:
    fields = info_fields(b"# Server\r\nexecutable:/opt/caf\xe9/redis-server\r\nrun_id:0f\r\n")

    assert fields["run_id"] == "0f"
    assert set(fields) == {"executable", "run_id"}
