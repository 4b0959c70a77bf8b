"""Worker liveness: a key in Redis that a running worker renews, and that expires when it dies.

``XINFO CONSUMERS`` cannot prove that a consumer is dead: before Redis 7.2 its ``idle`` is not reset by a blocking read
that returned nothing, so a live worker on a quiet stream looks dead. The key can: it exists while its worker renews it.
It also reserves the consumer name: two live workers under one name would read each other's pending entries.

A consumer without a key may still be alive (a ``QueueConsumer``, or a program of another library). So a worker that
keeps a key also registers its name in a set: a registered name without a key is dead, on every version of the server.
"""

from typing import Final

from conquiet.redis_transport.hash_tags import slot_prefix

LIVENESS_TTL_MS: Final = 15_000
"""How long a key outlives its worker. Renewed at least three times within it."""

RESERVE_NAME: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if KEYS[2] then redis.pcall('SADD', KEYS[2], ARGV[3]) end
return 1
"""
"""Reserve a consumer name, or renew the reservation. KEYS: liveness key, registered names; ARGV: token of this worker,
milliseconds, the name. Without the second key nothing is registered: any lease can be kept by this script.

Returns 1 if the name is ours now, 0 if another live worker holds it. Registered at each renewal: a process that stood
still for longer than the key lives may have been taken for dead.
"""

RELEASE_NAME: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
"""Delete a liveness key or a lease of ours. KEYS: the key; ARGV: token of this worker."""

LEAVE_GROUP: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local pending = redis.pcall('XPENDING', KEYS[2], ARGV[2], '-', '+', 1, ARGV[3])
if pending.err or #pending > 0 then return 0 end
local left = redis.pcall('XGROUP', 'DELCONSUMER', KEYS[2], ARGV[2], ARGV[3])
if type(left) == 'table' then return 0 end
redis.call('SREM', KEYS[3], ARGV[3])
return 1
"""
"""Release a consumer name at a clean stop, and delete the consumer if nothing is pending for it. KEYS: liveness key,
stream, registered names; ARGV: token of this worker, group, consumer. Returns 1 if the consumer was deleted.

DELCONSUMER drops what is pending for the consumer, so check and deletion are one step. A consumer with pending entries
keeps its name until they are claimed. A user without the right to XGROUP leaves the name behind.
"""


def liveness_key(stream: str, group: str, consumer: str) -> str:
    """Return the key that says that a consumer of a group is alive, in the slot of its stream."""
    return f"{slot_prefix(stream)}:alive:{group}:{consumer}"


def registry_key(stream: str, group: str) -> str:
    """Return the set of the consumers of a group that keep a liveness key, in the slot of its stream."""
    return f"{slot_prefix(stream)}:names:{group}"


def housekeeping_key(stream: str, group: str = "") -> str:
    """Return the lease of the host that trims a stream or, with a group, of the one that removes its dead names."""
    return f"{slot_prefix(stream)}:housekeeper" + (f":{group}" if group else "")
