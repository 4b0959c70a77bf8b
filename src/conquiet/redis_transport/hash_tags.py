"""Names of keys that share a stream's slot in a Redis Cluster. Pure.

Redis Cluster hashes only the text between the first ``{`` and the next ``}`` of a key, if there is any. So
``{orders}:delayed`` lives in the slot of ``orders``, and a stream that has a tag (``shop:{7}:orders``) only gets
a suffix. One script may then use all of these keys.
"""


def slot_prefix(stream: str) -> str:
    """Return the stream's name with a hash tag: keys that begin with it live in the stream's slot."""
    opened = stream.find("{")
    has_tag = opened >= 0 and stream.find("}", opened + 1) > opened + 1
    return stream if has_tag else f"{{{stream}}}"


def slot_prefix_bytes(stream: bytes) -> bytes:
    """Return ``slot_prefix`` of a key that need not be UTF-8."""
    return slot_prefix(stream.decode("latin-1")).encode("latin-1")
