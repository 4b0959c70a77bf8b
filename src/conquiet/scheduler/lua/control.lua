-- Remove, pause or resume an entry, or freeze one that moves to another stream.
--
-- A frozen entry is paused for every host. "moving" stores whether it was paused before; pausing and resuming a frozen
-- entry change that, because they apply to the stream it moves to.
--
-- KEYS  state (hash), definitions (hash)
-- ARGV  now in ms or '' for the server's own time, action, name, for a resumption the newest due time that is past
-- Returns 1 if it changed anything, else 0; for a frozen entry the digest of its times, its pointer and its pause.
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
  for _, field in ipairs({ 'rev', 'when', 'origin', 'last', 'paused', 'moving', 'fired', 'fire', 'missed' }) do
    changed = math.max(changed, redis.call('HDEL', KEYS[1], field .. ':' .. name))
  end
elseif redis.call('HEXISTS', KEYS[1], 'rev:' .. name) == 1 then
  local moving = redis.call('HGET', KEYS[1], 'moving:' .. name)
  if action == 'freeze' then
    if not moving then
      moving = redis.call('HGET', KEYS[1], 'paused:' .. name) or ''
      redis.call('HSET', KEYS[1], 'moving:' .. name, moving)
      redis.call('HSETNX', KEYS[1], 'paused:' .. name, now)
      redis.call('HINCRBY', KEYS[1], 'version', 1)
    end
    local place = redis.call('HMGET', KEYS[1], 'when:' .. name, 'last:' .. name)
    return { place[1], place[2], moving }
  elseif action == 'pause' then
    if moving == '' then
      changed = 1
      redis.call('HSET', KEYS[1], 'moving:' .. name, now)
    else
      changed = redis.call('HSETNX', KEYS[1], 'paused:' .. name, now)
    end
  elseif action == 'resume' then
    if not moving then
      changed = redis.call('HDEL', KEYS[1], 'paused:' .. name)
    elseif moving ~= '' then
      changed = 1
      redis.call('HSET', KEYS[1], 'moving:' .. name, '')
    end
    -- Ticks of the pause are dropped: neither caught up on nor missed. The pointer is never lowered: every tick up to
    -- it is fired or missed, also if the clock was set back since.
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
