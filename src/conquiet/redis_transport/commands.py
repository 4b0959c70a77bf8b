"""Pack Redis commands into bytes. Pure."""

import hiredis

from conquiet.errors import ConfigurationError

Word = str | bytes | int

# Bytes of a command line that are not UTF-8 arrive in Python as lone surrogates.
_NOT_UTF_8 = "a name or an argument is not valid UTF-8; write it in UTF-8"


def pack(*words: Word) -> bytes:
    """Return a command in the format that every Redis and Valkey reads.

    Raises:
        ConfigurationError: A word is not valid UTF-8.
    """
    try:
        return _pack(words)
    except UnicodeEncodeError:
        raise ConfigurationError(_NOT_UTF_8) from None
    except TypeError:  # hiredis takes an int and nothing derived from it, such as a setting out of an IntEnum
        return _pack(tuple(int(word) if isinstance(word, int) else word for word in words))


def _pack(words: tuple[Word, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub knows tuples of one word only
    return packed


def pack_prefix(*words: Word) -> bytes:
    """Return the words without the count in front: the beginning of a command that is completed later."""
    return pack(*words).split(b"\r\n", 1)[1]


def encoded(word: str) -> bytes:
    """Return one word as it is sent.

    Raises:
        ConfigurationError: It is not valid UTF-8.
    """
    try:
        return word.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(_NOT_UTF_8) from None


def create_group(stream: Word, group: Word) -> bytes:
    """Return XGROUP CREATE from the first entry on; it creates the stream if there is none. SPEC(001 §5.2)."""
    return pack("XGROUP", "CREATE", stream, group, "0-0", "MKSTREAM")


def split_packed(packed: bytes) -> list[bytes]:
    """Return the single commands of several packed ones."""
    commands: list[bytes] = []
    at = 0
    while at < len(packed):
        start = at
        at = packed.index(b"\r\n", at) + 2
        for _ in range(int(packed[start + 1 : at - 2])):
            end = packed.index(b"\r\n", at)
            at = end + 2 + int(packed[at + 1 : end]) + 2
        commands.append(packed[start:at])
    return commands
