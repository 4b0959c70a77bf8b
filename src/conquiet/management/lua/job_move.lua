-- with: conquiet.processor/ordering
-- Change the due time of a delayed job, or move it to the stream now. KEYS: stream, delayed, wake,
-- order
-- ARGV: payload, due time in ms ('' for now). Returns 1, or 0 if it has left the delayed set.
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not score then return 0 end
if ARGV[2] == '' then
  admit(KEYS[1], KEYS[4], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
else
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
end
redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'w', '1')
return 1
