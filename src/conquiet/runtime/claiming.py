"""Claim pending entries with one script that counts a delivery only for entries that may start.

XAUTOCLAIM, and XREADGROUP for a consumer's pending entries, count a delivery for every entry they return. An entry
queued behind another that kills the process would then be charged for a run that never began. So the script sets the
delivery count:

    up to half of ``max_deliveries``     counted when claimed, runs concurrently with others
    above that (a suspect)               counted when its handler is called, runs alone

Crashes caused by other entries therefore charge an entry with at most half of ``max_deliveries``. An entry in flight
here becomes stale if the heartbeat is late; claiming it again is not counted, because it is not started again. The
script also returns only the id of an entry that is too large or known to be malformed, not its content. Where the
operator has disabled XAUTOCLAIM, it finds stale entries page by page. SPEC(002 CM-001.3).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from conquiet.core.json_codec import TOO_LARGE
from conquiet.queue.codec import FIELD, NOT_ONE_FIELD, WRONG_FIELD
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.replies import text
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.settings import RuntimeSettings

OWN: Final = -1
"""In place of an idle time: claim the entries that are pending for this consumer already."""

TAKE_OVER: Final = """
local group, consumer, idle, cursor = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local suspect_from, most = tonumber(ARGV[6]), tonumber(ARGV[7])
local cap = tonumber(ARGV[9])
local known, in_flight = {}, {}
local first = 11 + tonumber(ARGV[10])
for i = 11, first - 1 do known[ARGV[i]] = true end
for i = first, #ARGV, 2 do in_flight[ARGV[i]] = ARGV[i + 1] end
local ids, deleted, next_cursor = {}, {}, '0-0'
if idle < 0 then
  local rows = redis.call('XPENDING', KEYS[1], group, cursor, '+', ARGV[5], consumer)
  for _, row in ipairs(rows) do ids[#ids + 1] = row[1] end
  if #ids > 0 then next_cursor = ids[#ids] end
else
  local found = redis.pcall('XAUTOCLAIM', KEYS[1], group, consumer, idle, cursor, 'COUNT', ARGV[5], 'JUSTID')
  if not found.err then
    next_cursor, ids, deleted = found[1], found[2], found[3] or {}
  elseif not string.find(string.lower(found.err), 'unknown', 1, true) then
    return found
  else
    local page, claim = redis.call('XPENDING', KEYS[1], group, cursor, '+', 100), {}
    for _, row in ipairs(page) do
      if row[3] >= idle and #claim < tonumber(ARGV[5]) then claim[#claim + 1] = row[1] end
    end
    if #claim == tonumber(ARGV[5]) then
      next_cursor = '(' .. claim[#claim]
    elseif #page == 100 then
      next_cursor = '(' .. page[100][1]
    end
    if #claim > 0 then
      claim[#claim + 1] = 'JUSTID'
      ids = redis.call('XCLAIM', KEYS[1], group, consumer, idle, unpack(claim))
    end
  end
end
local taken = {}
for _, id in ipairs(ids) do
  local row = redis.call('XPENDING', KEYS[1], group, id, id, 1, consumer)[1]
  local count = row and row[4] + 1 or 1
  if in_flight[id] then
    redis.call('XCLAIM', KEYS[1], group, consumer, 0, id, 'IDLE', in_flight[id], 'RETRYCOUNT', count - 1, 'JUSTID')
  elseif known[id] then
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
"""KEYS: stream; ARGV: group, consumer, idle time or -1, cursor, count, highest delivery count that is counted when an
entry is claimed (0: every one), maximum payload size in bytes, name of the payload field, the delivery cap, the
number of known malformed entries and their ids, then pairs of the id of an entry in flight and the idle time to set.

Returns the next cursor, entries as (id, fields or a reason number, delivery count, whether it was counted), and the ids
of entries that were deleted.
"""

CHARGE: Final = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2]) == 0 then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID')
return 1
"""
"""Count a delivery when its handler is called. KEYS: stream; ARGV: group, consumer, id, count. Returns 0 if another
consumer owns the entry."""

_REASONS: Final = {0: "", 1: NOT_ONE_FIELD, 2: WRONG_FIELD, 3: TOO_LARGE}


@dataclass(frozen=True, slots=True)
class Taken:
    """One entry of a reply.

    Attributes:
        id: Entry id.
        fields: Raw names and values. None if the entry cannot be a message.
        reason: Why it cannot be a message. Empty if the caller knows the reason.
        deliveries: Delivery count, including this delivery.
        charged: True if the server has counted this delivery.
    """

    id: str
    fields: list[bytes] | None
    reason: str
    deliveries: int
    charged: bool


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The parsed reply of ``TAKE_OVER``."""

    cursor: str
    entries: list[Taken]
    deleted: list[str]


def suspect_from(max_deliveries: int | None) -> int:
    """Return the highest delivery count that is counted at the claim. Above it an entry is a suspect. 0: no limit."""
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
    in_flight: Iterable[RuntimeMessage] = (),
) -> bytes:
    """Return the packed EVAL command. An expired lease of a message in flight stays claimable."""
    limits = (suspect_from(settings.max_deliveries), settings.max_payload_bytes, FIELD, settings.max_deliveries or 0)
    pairs = [part for one in in_flight for part in (one.id, settings.claim_idle_ms if one.lease_lost else 0)]
    return pack("EVAL", TAKE_OVER, 1, stream, *who, idle_ms, cursor, count, *limits, len(known), *known, *pairs)


def taken_over(reply: Any) -> TakenOver:
    """Parse the reply of ``TAKE_OVER``."""
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
