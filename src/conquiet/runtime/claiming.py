"""Taking over pending entries: one script that counts a delivery only where it may be counted.

XAUTOCLAIM and a read of our own pending entries count a delivery for every entry they return. An entry that waits
behind one that kills the process is then charged for a run that never began. So the script sets the count itself:

    up to half of ``max_deliveries``     counted when taken over, run beside others
    above that (a suspect)               counted when its handler is called, and run alone

An innocent entry therefore passes the second half of its deliveries only by runs of its own. It also keeps what cannot
be a message on the server: an entry that is too large, or that was found malformed before, is named but not sent.
"""

from dataclasses import dataclass
from typing import Any, Final

from conquiet.core.json_codec import TOO_LARGE
from conquiet.queue.codec import FIELD, NOT_ONE_FIELD, WRONG_FIELD
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.replies import text
from conquiet.runtime.settings import RuntimeSettings

OWN: Final = -1
"""In place of an idle time: take what is pending under our own name."""

TAKE_OVER: Final = """
local group, consumer, idle, cursor = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local suspect_from, most = tonumber(ARGV[6]), tonumber(ARGV[7])
local cap = tonumber(ARGV[9])
local known = {}
for i = 10, #ARGV do known[ARGV[i]] = true end
local ids, deleted, next_cursor = {}, {}, '0-0'
if idle < 0 then
  local rows = redis.call('XPENDING', KEYS[1], group, cursor, '+', ARGV[5], consumer)
  for _, row in ipairs(rows) do ids[#ids + 1] = row[1] end
  if #ids > 0 then next_cursor = ids[#ids] end
else
  local found = redis.call('XAUTOCLAIM', KEYS[1], group, consumer, idle, cursor, 'COUNT', ARGV[5], 'JUSTID')
  next_cursor, ids, deleted = found[1], found[2], found[3] or {}
end
local taken = {}
for _, id in ipairs(ids) do
  local row = redis.call('XPENDING', KEYS[1], group, id, id, 1, consumer)[1]
  local count = row and row[4] + 1 or 1
  if known[id] then
    redis.call('XCLAIM', KEYS[1], group, consumer, 0, id, 'RETRYCOUNT', count, 'JUSTID')
    taken[#taken + 1] = {id, 0, count, 1}
  else
    local charged = (suspect_from == 0 or count <= suspect_from or count > cap) and 1 or 0
    local got = redis.call('XCLAIM', KEYS[1], group, consumer, 0, id, 'RETRYCOUNT', count - 1 + charged)[1]
    if got and got[2] then
      local fields, bytes = got[2], 0
      for _, part in ipairs(fields) do bytes = bytes + #part end
      if bytes > most + #ARGV[8] then
        fields = #fields ~= 2 and 1 or fields[1] ~= ARGV[8] and 2 or 3
      end
      taken[#taken + 1] = {id, fields, count, charged}
    else
      deleted[#deleted + 1] = id
    end
  end
end
return {next_cursor, taken, deleted}
"""
"""KEYS: stream; ARGV: group, consumer, idle time or -1, cursor, count, last delivery that is counted when an entry is
taken over (0: all are), most bytes of a payload, the name of its field, the delivery cap, ids that are known to be
malformed.

Returns the next cursor, entries as (id, fields or the number of a reason, delivery count, whether it was counted), and
the ids of entries that were deleted.
"""

CHARGE: Final = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2]) == 0 then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID')
return 1
"""
"""Count a delivery now that its handler is called. KEYS: stream; ARGV: group, consumer, id, count. Returns 0 if the
entry belongs to another consumer."""

_REASONS: Final = {0: "", 1: NOT_ONE_FIELD, 2: WRONG_FIELD, 3: TOO_LARGE}


@dataclass(frozen=True, slots=True)
class Taken:
    """One entry of a reply.

    Attributes:
        id: Entry id.
        fields: Names and values, as the server sent them; None if it cannot be a message.
        reason: Why it cannot be one; empty if the caller knows the reason.
        deliveries: Its delivery count, this delivery included.
        charged: The server has counted this delivery.
    """

    id: str
    fields: list[bytes] | None
    reason: str
    deliveries: int
    charged: bool


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A reply of ``TAKE_OVER``."""

    cursor: str
    entries: list[Taken]
    deleted: list[str]


def suspect_from(max_deliveries: int | None) -> int:
    """Return the last delivery that is counted at once and run beside others; 0 if all are. Pure."""
    return 0 if max_deliveries is None else max_deliveries // 2


def take_over(
    stream: str,
    who: tuple[str, str],
    settings: RuntimeSettings,
    *,
    idle_ms: int,
    cursor: str,
    count: int,
    known: list[str],
) -> bytes:
    """Return the packed call."""
    limits = (suspect_from(settings.max_deliveries), settings.max_payload_bytes, FIELD, settings.max_deliveries or 0)
    return pack("EVAL", TAKE_OVER, 1, stream, *who, idle_ms, cursor, count, *limits, *known)


def taken_over(reply: Any) -> TakenOver:
    """Return the reply of ``TAKE_OVER`` as an object."""
    cursor, rows, deleted = reply
    return TakenOver(
        text(cursor),
        [
            Taken(text(raw_id), None, _REASONS[fields], int(count), bool(charged))
            if isinstance(fields, int)
            else Taken(text(raw_id), fields, "", int(count), bool(charged))
            for raw_id, fields, count, charged in rows
        ],
        [text(one) for one in deleted],
    )
