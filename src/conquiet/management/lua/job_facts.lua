-- Return hashes about one job, as names and values, and the time to live of each in ms.
-- KEYS: hashes. Returns {{name, value, …}, ms, …}.
local answers = {}
for _, key in ipairs(KEYS) do
  answers[#answers + 1] = redis.call('HGETALL', key)
  answers[#answers + 1] = redis.call('PTTL', key)
end
return answers
