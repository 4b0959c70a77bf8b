-- with: ordering
-- Acknowledge entries and write their dead letters. One step, for the same reason as a retry.
-- KEYS: stream, dead, order, cancel; ARGV: group, consumer, most dead letters kept (0: all), their greatest age in ms (0:
-- any), words per entry, then per entry: entry id, record, and with four words key and ticket: its turn ends with it
-- Returns {dead letters that the retention removed, then per entry 1; 0 if another consumer has claimed it; 3 if its
-- job has a request to cancel, and nothing was done}.
local answers = {0}
local words = tonumber(ARGV[5])
for i = 6, #ARGV, words do
  if redis.call('HEXISTS', KEYS[4], ARGV[i] .. ' ' .. ARGV[1]) == 1 then
    answers[#answers + 1] = 3
  elseif #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) == 1 then
    redis.call('XADD', KEYS[2], '*', 'data', ARGV[i + 1])
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    if words == 4 and owns_order(KEYS[1], KEYS[3], ARGV[1]) then
      release(KEYS[1], KEYS[3], ARGV[i + 2], ARGV[i + 3])
    end
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = 0
  end
end
local most, age = tonumber(ARGV[3]), tonumber(ARGV[4])
if most > 0 then answers[1] = answers[1] + redis.call('XTRIM', KEYS[2], 'MAXLEN', most) end
if age > 0 then
  local t = redis.call('TIME')
  local oldest = t[1] * 1000 + math.floor(t[2] / 1000) - age
  if oldest > 0 then answers[1] = answers[1] + redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f', oldest)) end
end
return answers
