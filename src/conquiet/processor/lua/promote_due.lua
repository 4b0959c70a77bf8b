-- with: ordering
-- Move due messages to their stream, and return the facts that a host needs for its next poll. Any number of hosts may
-- call it: a message leaves the set in the step that puts it into the stream.
-- KEYS: stream, delayed, wake, paused, parked, dead, order, cancel; ARGV: most messages to move
-- Returns {moved, next due time or '', now, id of the last wake-up, {paused, since, …}, {events with parked
-- messages}, messages that wait, dead letters, id of the oldest dead letter or '', the group that owns the order by key
-- or '', messages to move to another partition, undecided cancellations}.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
for i = 1, #due do
  admit(KEYS[1], KEYS[7], due[i])
end
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[2], 0, #due - 1) end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local woken = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
local oldest = redis.call('XRANGE', KEYS[6], '-', '+', 'COUNT', 1)
return {
  #due,
  first[2] or '',
  string.format('%.0f', now),
  woken[1] and woken[1][1] or '0-0',
  redis.call('HGETALL', KEYS[4]),
  redis.call('SMEMBERS', KEYS[5]),
  redis.call('ZCARD', KEYS[2]),
  redis.call('XLEN', KEYS[6]),
  oldest[1] and oldest[1][1] or '',
  redis.call('HGET', KEYS[7], '\1') or '',
  redis.call('LLEN', KEYS[7] .. ':moving'),
  redis.call('HLEN', KEYS[8])
}
