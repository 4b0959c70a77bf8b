-- Hashes about one job, each as names and values in turn, and the remaining life of each in ms.
-- KEYS: hashes. Answers {{name, value, …}, ms, …}.
local answers = {}
for _, key in ipairs(KEYS) do
  answers[#answers + 1] = redis.call('HGETALL', key)
  answers[#answers + 1] = redis.call('PTTL', key)
end
return answers
