-- Apply a retention to the dead letters. KEYS: dead; ARGV: most kept (0: all), greatest age in ms (0: any).
-- Returns the number removed.
local fallen = 0
local most, age = tonumber(ARGV[1]), tonumber(ARGV[2])
if most > 0 then fallen = fallen + redis.call('XTRIM', KEYS[1], 'MAXLEN', most) end
if age > 0 then
  local t = redis.call('TIME')
  local oldest = t[1] * 1000 + math.floor(t[2] / 1000) - age
  if oldest > 0 then fallen = fallen + redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f', oldest)) end
end
return fallen
