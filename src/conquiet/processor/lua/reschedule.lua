-- with: ordering
-- Acknowledge entries and delay their next attempts, or messages that came too early. One step, so that a crash can
-- neither lose the message nor schedule it twice.
-- The acknowledgement comes last: an error (no memory left, a key of another type) ends a script in the middle.
-- KEYS: stream, delayed, wake, order, cancel; ARGV: group, consumer, words per entry, then per entry: entry id, when (as in
-- emit), payload, and with five words key and ticket: it releases its key. Otherwise a message with a key keeps its ticket, and
-- with it its turn.
-- Returns per entry 1; 0 if another consumer has claimed it: its new owner decides; 3 if its job has a request to cancel:
-- nothing was done, and the worker decides.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local answers = {}
local earliest = nil
local words = tonumber(ARGV[3])
for i = 4, #ARGV, words do
  local id, when, payload = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('HEXISTS', KEYS[5], id .. ' ' .. ARGV[1]) == 1 then
    answers[#answers + 1] = 3
  elseif #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) == 1 then
    local given = tonumber(string.sub(when, 2))
    local due = string.sub(when, 1, 1) == '+' and now + given or given
    if due <= now then
      admit(KEYS[1], KEYS[4], payload)
    else
      redis.call('ZADD', KEYS[2], due, payload)
      if not earliest or due < earliest then earliest = due end
    end
    redis.call('XACK', KEYS[1], ARGV[1], id)
    if words == 5 and owns_order(KEYS[1], KEYS[4], ARGV[1]) then
      release(KEYS[1], KEYS[4], ARGV[i + 3], ARGV[i + 4])
    end
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = 0
  end
end
if earliest then
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  if tonumber(first[2]) >= earliest then redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'w', '1') end
end
return answers
