-- with: ordering
-- Acknowledge an entry that has a key and no ticket (another program wrote it) and append its message to the queue of its key.
-- KEYS: stream, order; ARGV: group, consumer, entry id, payload. Returns 1, or 0 if another consumer has claimed it.
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2]) == 0 then return 0 end
admit(KEYS[1], KEYS[2], ARGV[4])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
return 1
