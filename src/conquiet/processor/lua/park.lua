-- Put an entry of a paused event aside and acknowledge it. The pause is looked up here and not believed: a host may
-- not have heard yet that it is over, and what is parked afterwards would never come back.
-- KEYS: stream, paused, parked, parked list of the event; ARGV: group, consumer, event, entry id, payload
-- Answers 1; 0 if the entry is not this consumer's any more; 2 if the event is not paused.
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 0 then return 2 end
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[4], ARGV[4], 1, ARGV[2]) == 0 then return 0 end
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('RPUSH', KEYS[4], ARGV[5])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[4])
return 1
