-- Park an entry of a paused event and acknowledge it. The pause is checked here: a host may not know yet that the pause
-- has ended, and an entry parked after its end would never return.
-- KEYS: stream, paused, parked, parked list of the event, cancel; ARGV: group, consumer, event, entry id, payload
-- Returns 1; 0 if another consumer has claimed the entry; 2 if the event is not paused; 3 if the job has a request to cancel.
if redis.call('HEXISTS', KEYS[2], ARGV[3]) == 0 then return 2 end
if redis.call('HEXISTS', KEYS[5], ARGV[4] .. ' ' .. ARGV[1]) == 1 then return 3 end
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[4], ARGV[4], 1, ARGV[2]) == 0 then return 0 end
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('RPUSH', KEYS[4], ARGV[5])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[4])
return 1
