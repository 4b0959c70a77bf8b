-- Return parked messages of an event to the end of their stream, unless it is paused (again).
-- A message with a key keeps its ticket, and so its turn.
-- KEYS: stream, paused, parked, parked list of the event; ARGV: event, most messages to move. Returns the number left.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 0 end
local parked = redis.call('LRANGE', KEYS[4], 0, tonumber(ARGV[2]) - 1)
for i = 1, #parked do redis.call('XADD', KEYS[1], '*', 'data', parked[i]) end
if #parked > 0 then redis.call('LTRIM', KEYS[4], #parked, -1) end
local left = redis.call('LLEN', KEYS[4])
if left == 0 then redis.call('SREM', KEYS[3], ARGV[1]) end
return left
