"""Stream entry ids: form, order, time. Pure."""

import re

_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def is_entry_id(text: str) -> bool:
    """Return whether a text has the form of a stream entry's id."""
    return _ENTRY_ID.fullmatch(text) is not None


def parse_id(entry_id: str) -> tuple[int, int]:
    """Return an entry id as (milliseconds, sequence), which sorts as the server sorts."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def next_id(entry_id: str) -> str:
    """Return the smallest id after this one: where to continue."""
    milliseconds, sequence = parse_id(entry_id)
    return f"{milliseconds}-{sequence + 1}"


def milliseconds_of(entry_id: str) -> int:
    """Return the time part of an entry id: Unix time in milliseconds on the server's clock, unless a client set it."""
    return parse_id(entry_id)[0]
