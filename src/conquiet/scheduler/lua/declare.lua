-- Store an entry unless it is stored already.
--
-- KEYS  state (hash), definitions (hash)
-- ARGV  now in ms or '' for the server's own time, name, definition, revision, digest of its times, origin,
--       '1' if it is due only once and may be late, '1' to replace an entry of the same name, epoch for a stream without one,
--       '1' if it comes from another stream, its pointer there or '', since when it was paused there or ''
-- Returns added, changed, same, exists or in-code.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local name, definition, revision, times, origin = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
redis.call('HSETNX', KEYS[1], 'epoch', ARGV[9])
local comes, pointer, paused = ARGV[10] == '1', ARGV[11], ARGV[12]
local known = redis.call(
  'HMGET', KEYS[1], 'rev:' .. name, 'when:' .. name, 'origin:' .. name, 'last:' .. name, 'moving:' .. name)
local frozen = origin == 'code' and known[5]
if known[1] then
  if origin == 'runtime' and known[3] == 'code' then
    return 'in-code'
  end
  if known[1] == revision and known[3] == origin and not comes and not frozen then
    return 'same'
  end
  if origin == 'runtime' and ARGV[8] ~= '1' then
    return 'exists'
  end
end
redis.call('HSET', KEYS[2], name, definition)
redis.call('HSET', KEYS[1], 'rev:' .. name, revision, 'when:' .. name, times, 'origin:' .. name, origin)
if known[2] ~= times then
  -- New times start from now: their past ticks were never to be fired. A one-off time has only one tick, and if it
  -- is past, the entry's catch-up policy decides.
  local start = ARGV[7] == '1' and '0' or string.format('%.0f', now)
  redis.call('HSET', KEYS[1], 'last:' .. name, pointer ~= '' and pointer or start)
elseif pointer ~= '' and tonumber(pointer) > tonumber(known[4]) then
  redis.call('HSET', KEYS[1], 'last:' .. name, pointer)
end
if frozen or (comes and not known[1]) then
  -- Keep the pause of the stream it moves from; or the pause from here, if the move away was not completed.
  if not comes then
    paused = frozen
  end
  redis.call('HDEL', KEYS[1], 'moving:' .. name, 'paused:' .. name)
  if paused ~= '' then
    redis.call('HSET', KEYS[1], 'paused:' .. name, paused)
  end
end
redis.call('HINCRBY', KEYS[1], 'version', 1)
return known[1] and 'changed' or 'added'
