"""Read commands as they are sent."""

import hiredis


def unpack(packed: bytes) -> list[list[bytes]]:
    """A command on the wire is an array of strings, so a reply parser reads it."""
    reader = hiredis.Reader()
    reader.feed(packed)
    found = []
    while (words := reader.gets()) is not False:
        found.append(words)
    return found
