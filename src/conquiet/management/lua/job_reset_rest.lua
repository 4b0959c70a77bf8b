-- Delete the first members of a sorted set, a list or a stream. KEYS: key; ARGV: most members. Returns the number deleted.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'zset' then return redis.call('ZREMRANGEBYRANK', KEYS[1], 0, ARGV[1] - 1) end
if kind == 'list' then
  local length = redis.call('LLEN', KEYS[1])
  redis.call('LTRIM', KEYS[1], ARGV[1], -1)
  return math.min(length, tonumber(ARGV[1]))
end
if kind ~= 'stream' then return 0 end
local ids = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[1])) do ids[#ids + 1] = entry[1] end
if #ids == 0 then return 0 end
return redis.call('XDEL', KEYS[1], unpack(ids))
