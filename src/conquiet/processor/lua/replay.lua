-- Take dead letters and put their messages back into the stream. Whoever takes one first replays it, nobody else.
-- KEYS: stream, dead; ARGV: per dead letter: its id, payload. Answers per dead letter 1, or 0 if it is gone.
local answers = {}
for i = 1, #ARGV, 2 do
  local there = #redis.call('XRANGE', KEYS[2], ARGV[i], ARGV[i])
  if there == 1 then
    redis.call('XADD', KEYS[1], '*', 'data', ARGV[i + 1])
    redis.call('XDEL', KEYS[2], ARGV[i])
  end
  answers[#answers + 1] = there
end
return answers
