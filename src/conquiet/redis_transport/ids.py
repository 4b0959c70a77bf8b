"""Order of stream entry ids. Pure."""


def parse_id(entry_id: str) -> tuple[int, int]:
    """Return an entry id as (milliseconds, sequence), which sorts as the server sorts."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def milliseconds_of(entry_id: str) -> int:
    """Return the time part of an entry id: Unix time in milliseconds on the server's clock, unless a client set it."""
    return parse_id(entry_id)[0]
