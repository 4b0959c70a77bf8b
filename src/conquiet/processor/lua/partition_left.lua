-- Count keys of other partitions with a holder here, and messages to move there. KEYS: order; ARGV: most keys to
-- read. Returns the number, or -1 if there are more keys than may be read.
-- makes names of keys
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[1]) then return -1 end
local layout = redis.call('HGET', KEYS[1], '\2')
if not layout then return 0 end
local count, own = string.match(layout, '^(%d+) (%d+)$')
local left = redis.call('LLEN', KEYS[1] .. ':moving')
for _, key in ipairs(redis.call('HKEYS', KEYS[1])) do
  if #key > 1 or string.byte(key) and string.byte(key) > 2 then
    local home = tonumber(string.sub(redis.sha1hex(key), 1, 8), 16) % tonumber(count)
    if home ~= tonumber(own) then left = left + 1 end
  end
end
return left
