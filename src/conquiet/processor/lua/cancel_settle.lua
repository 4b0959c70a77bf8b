-- with: ordering
-- Acknowledge the entry of a job that is cancelled or had its effect before it could be. Recorded in the same step.
-- KEYS: stream, cancel, record, order; ARGV: group, consumer, entry id, 'cancelled' or 'finished', event, ms the record is kept
-- Returns 1, or 0 if another consumer has claimed the entry: its new owner decides.
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1, ARGV[2]) == 0 then return 0 end
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
redis.call('HSET', KEYS[3], 'state', ARGV[4], 'at_ms', now, 'event', ARGV[5], 'group', ARGV[1], 'while_in', 'running')
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('HDEL', KEYS[2], ARGV[3] .. ' ' .. ARGV[1])
local entry = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
if entry and owns_order(KEYS[1], KEYS[4], ARGV[1]) then release_message(KEYS[1], KEYS[4], entry[2][2]) end
return 1
