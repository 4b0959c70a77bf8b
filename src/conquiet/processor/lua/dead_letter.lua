-- with: ordering
-- Acknowledge entries and write their dead letters. One step, for the same reason as a retry.
-- KEYS: stream, dead, order, cancel; ARGV: group, consumer, most dead letters kept (0: all), their greatest age in ms (0:
-- any), then per entry: entry id, record, key and ticket if its turn ends with it, else two times ''
-- Answers {dead letters that the retention removed, then per entry 1; 0 if it is not this consumer's any more; 3 if
-- its job is to be cancelled, and nothing was done}.
local answers = {0}
for i = 5, #ARGV, 4 do
  if redis.call('HEXISTS', KEYS[4], ARGV[i] .. ' ' .. ARGV[1]) == 1 then
    answers[#answers + 1] = 3
  elseif #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) == 1 then
    redis.call('XADD', KEYS[2], '*', 'data', ARGV[i + 1])
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    if ARGV[i + 3] ~= '' and owns_order(KEYS[1], KEYS[3], ARGV[1]) then
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
