"""Worker liveness: a key in Redis that a running worker renews, and that expires when it dies.

``XINFO CONSUMERS`` cannot prove that a consumer is dead: before Redis 7.2 its ``idle`` is not reset by a blocking read
that returned nothing, so a live worker on a quiet stream looks dead. The key can: it exists while its worker renews it.
It also reserves the consumer name: two live workers under one name would read each other's pending entries.

A consumer without a key may still be alive (a ``QueueConsumer``, or a program of another library). So a worker that
keeps a key also registers its name in a set: a registered name without a key is dead, on every version of the server.

The key holds a token with the machine and the process id of its worker. So a program on the same machine detects the
end of the worker immediately, before the key expires.
"""

import contextlib
import os
import uuid
from pathlib import Path
from typing import Final

from conquiet.redis_transport.hash_tags import slot_prefix

LIVENESS_TTL_MS: Final = 15_000
"""Time to live of a key. It is renewed at least three times within it."""

RESERVE_NAME: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if KEYS[2] then redis.pcall('SADD', KEYS[2], ARGV[3]) end
return 1
"""
"""Reserve a consumer name, or renew the reservation. KEYS: liveness key, registered names; ARGV: token of this worker,
milliseconds, the name. Without the second key nothing is registered: this script can keep any lease.

Returns 1 if this worker holds the name now, 0 if another live worker does. Registered at each renewal: another worker
may have removed the name of a process that was suspended for longer than the key lives.
"""

RELEASE_NAME: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
"""Delete a liveness key or a lease if this worker holds it. KEYS: the key; ARGV: token of this worker."""

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


HOLDERS: Final = """
local found = {}
for _, name in ipairs(redis.call('SRANDMEMBER', KEYS[1], ARGV[2])) do
  local holder = redis.call('GET', ARGV[1] .. name)
  if holder then
    found[#found + 1] = name
    found[#found + 1] = holder
  end
end
return found
"""
"""List registered names with the tokens of their holders. KEYS: registered names; ARGV: prefix of their liveness keys
(the same slot), most names."""


def machine() -> str:
    """Return the scope of this machine's process ids (boot and pid namespace); empty if unknown."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    return ""


def new_token() -> str:
    """Return a token for the liveness keys of a worker of this process."""
    return f"{machine()}/{os.getpid()}/{uuid.uuid4().hex}"


def has_ended(token: str) -> bool:
    """Return whether the token's process was one of this machine and has ended.

    False if it is alive, of another machine or container, or if its id was given to another process since.
    """
    where, _, rest = token.partition("/")
    pid = rest.partition("/")[0]
    if not where or where != machine() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def liveness_key(stream: str, group: str, consumer: str) -> str:
    """Return the liveness key of a consumer of a group, in the slot of its stream."""
    return f"{slot_prefix(stream)}:alive:{group}:{consumer}"


def registry_key(stream: str, group: str) -> str:
    """Return the set of the consumers of a group that keep a liveness key, in the slot of its stream."""
    return f"{slot_prefix(stream)}:names:{group}"


def housekeeping_key(stream: str, group: str = "") -> str:
    """Return the lease of the host that trims a stream or, with a group, of the host that removes its dead names."""
    return f"{slot_prefix(stream)}:housekeeper" + (f":{group}" if group else "")
