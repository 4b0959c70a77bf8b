-- Record that jobs had their effect before they could be cancelled. Their entries are acknowledged, or will be.
-- KEYS: cancel, then one record per job; ARGV: ms a record is kept, then per job: entry id and group, event
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
for i = 2, #KEYS do
  local field, event = ARGV[2 * i - 2], ARGV[2 * i - 1]
  if redis.call('HDEL', KEYS[1], field) == 1 then
    redis.call('HSET', KEYS[i], 'state', 'finished', 'at_ms', now, 'event', event, 'group', string.match(field, ' (.*)$'))
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
  end
end
return 1
