-- Fire plans: emit their ticks and move each entry's pointer, in one step.
--
-- KEYS  state of the entries (hash), stream, definitions of the entries (hash)
-- ARGV  now in ms or '' for the server's own time, then for each plan:
--       name, revision, pointer the plan started from, new pointer, not before (ms), missed, drop when done,
--       due time of the last tick fired or '', number of messages, the messages
-- Returns now, then for each plan its result and the current pointer.
--
-- The pointer is compared, not only raised: a plan made from an old pointer is dropped as a whole, so two hosts
-- can neither fire a tick twice nor count a fired tick as missed.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local reply = { string.format('%.0f', now) }
local at = 2
while at <= #ARGV do
  local name, revision, from, to, not_before = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local missed, drop, last_fire, count = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], tonumber(ARGV[at + 8])
  local first = at + 9
  at = first + count
  local known = redis.call('HMGET', KEYS[1], 'rev:' .. name, 'last:' .. name, 'paused:' .. name)
  local result
  if known[1] ~= revision then
    result = 'changed'
  elseif known[3] then
    result = 'paused'
  elseif known[2] ~= from then
    result = 'stale'
  elseif now < tonumber(not_before) then
    result = 'early'
  else
    -- Messages first: if the stream refuses them, the script ends here and the pointer has not moved.
    for i = first, first + count - 1 do
      redis.call('XADD', KEYS[2], '*', 'data', ARGV[i])
    end
    redis.call('HSET', KEYS[1], 'last:' .. name, to)
    if count > 0 then
      redis.call('HINCRBY', KEYS[1], 'fired:' .. name, count)
      redis.call('HSET', KEYS[1], 'fire:' .. name, last_fire)
    end
    if missed ~= '0' then
      redis.call('HINCRBY', KEYS[1], 'missed:' .. name, missed)
    end
    if drop == '1' then
      redis.call('HDEL', KEYS[3], name)
      for _, field in ipairs({ 'rev', 'when', 'origin', 'last', 'paused', 'moving', 'fired', 'fire', 'missed' }) do
        redis.call('HDEL', KEYS[1], field .. ':' .. name)
      end
    end
    known[2] = to
    result = 'done'
  end
  reply[#reply + 1] = result
  reply[#reply + 1] = known[2] or ''
end
return reply
