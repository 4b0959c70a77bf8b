-- Reserve the next start under a rate limit. If it is later, acknowledge the entry and delay it until then.
-- KEYS: stream, delayed, wake, rate, cancel
-- ARGV: group, consumer, entry id, payload to store, microseconds between two starts, burst
-- Returns 0 to start now; the wait in ms if a later start was reserved; -1 if another consumer has claimed the entry;
-- -3 if the job has a request to cancel, and nothing was reserved.
-- The rate key holds '<next free start>:<when that was written>', so that a clock that was set back moves the starts back
-- too. Otherwise every start would be reserved that far ahead.
if redis.call('HEXISTS', KEYS[5], ARGV[3] .. ' ' .. ARGV[1]) == 1 then return -3 end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local interval, burst = tonumber(ARGV[5]), tonumber(ARGV[6])
local free, written = string.match(redis.call('GET', KEYS[4]) or '0', '^(%d+):?(%d*)$')
free, written = tonumber(free or '0'), tonumber(written or '') or 0
if written > now then free = free - (written - now) end
if free < now - interval * (burst - 1) then free = now - interval * (burst - 1) end
local wait_ms = math.ceil((free - now) / 1000)
if wait_ms > 0 then
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2]) == 0 then return -1 end
  local due = math.floor(now / 1000) + wait_ms
  -- The payload is a JSON object. Its start time is known only here.
  local payload = string.format('%s,"reserved_ms":%.0f}', string.sub(ARGV[4], 1, -2), due)
  redis.call('ZADD', KEYS[2], due, payload)
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
  local first = redis.call('ZRANGE', KEYS[2], 0, 0)
  if first[1] == payload then redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'w', '1') end
end
free = free + interval
local kept_ms = math.min(math.ceil((free - now) / 1000 + interval * burst / 1000) + 1000, 2 ^ 52)
redis.call('SET', KEYS[4], string.format('%.0f:%.0f', free, now), 'PX', string.format('%.0f', kept_ms))
if wait_ms > 0 then return wait_ms end
return 0
