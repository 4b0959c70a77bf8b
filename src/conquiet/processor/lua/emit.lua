-- with: ordering
-- Emit a chunk of messages: into the stream, or into the delayed set; each id at most once in its window.
-- KEYS: stream, delayed, wake, order, then the keys of ids to remember
-- ARGV: per message: payload, when ('' now, '?' now unless its key has moved to another partition, '+500' in 500 ms,
-- '=1763…' at that ms), number of its id key (0: none), window in ms
-- Returns per message: entry id; '@' and the due time if it waits; '#' and the number of messages of its
-- key before it; '>' and the number of partitions if its key has moved and nothing was done; '' if its id was emitted before.
-- Everything that can be refused is checked before the first write: an error ends a script in the middle, and a mark
-- without its message would reject the repetition.
redis.call('XLEN', KEYS[1])
redis.call('ZCARD', KEYS[2])
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local answers = {}
local earliest = nil
for i = 1, #ARGV, 4 do
  local payload, when, remembered = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local count = nil
  if when == '?' then
    when = ''
    local key = key_of(payload)
    if key then count = moved(KEYS[4], key) end
  end
  if count then
    answers[#answers + 1] = '>' .. count
  elseif remembered > 0 and not redis.call('SET', KEYS[4 + remembered], '1', 'NX', 'PX', ARGV[i + 3]) then
    answers[#answers + 1] = ''
  else
    local due = now
    if when ~= '' then
      local given = tonumber(string.sub(when, 2))
      due = string.sub(when, 1, 1) == '+' and now + given or given
    end
    if due <= now then
      local id, ahead = admit(KEYS[1], KEYS[4], payload)
      answers[#answers + 1] = id or '#' .. ahead
    else
      redis.call('ZADD', KEYS[2], due, payload)
      if not earliest or due < earliest then earliest = due end
      answers[#answers + 1] = '@' .. string.format('%.0f', due)
    end
  end
end
if earliest then
  -- Promoters sleep until the earliest known due time. Wake them only if it has changed.
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  if tonumber(first[2]) >= earliest then redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'w', '1') end
end
return answers
