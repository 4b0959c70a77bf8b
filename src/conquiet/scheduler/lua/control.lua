-- Remove, pause or resume an entry.
--
-- KEYS  state (hash), definitions (hash)
-- ARGV  now in ms or '' for the server's own time, what to do, name, for a resumption the newest due time that is past
-- Answers 1 if it changed anything.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
now = string.format('%.0f', now)
local action, name = ARGV[2], ARGV[3]
local changed = 0
if action == 'remove' then
  changed = redis.call('HDEL', KEYS[2], name)
  for _, field in ipairs({ 'rev', 'when', 'origin', 'last', 'paused', 'fired', 'fire', 'missed' }) do
    changed = math.max(changed, redis.call('HDEL', KEYS[1], field .. ':' .. name))
  end
elseif redis.call('HEXISTS', KEYS[1], 'rev:' .. name) == 1 then
  if action == 'pause' then
    changed = redis.call('HSETNX', KEYS[1], 'paused:' .. name, now)
  elseif action == 'resume' then
    changed = redis.call('HDEL', KEYS[1], 'paused:' .. name)
    -- What was to be fired during the pause was not wanted: it is neither caught up on nor missed. The pointer is
    -- never lowered: behind it everything is fired or missed, also when the clock was set back since.
    local last = redis.call('HGET', KEYS[1], 'last:' .. name)
    if changed == 1 and tonumber(ARGV[4]) > tonumber(last or 0) then
      redis.call('HSET', KEYS[1], 'last:' .. name, ARGV[4])
    end
  end
end
if changed > 0 then
  redis.call('HINCRBY', KEYS[1], 'version', 1)
end
return changed
