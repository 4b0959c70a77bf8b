-- List the groups of a stream. KEYS: stream. Returns {{name, pending, last delivered id}, …}; nothing without a stream.
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local answers = {}
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local facts = {}
  for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
  answers[#answers + 1] = {facts['name'], facts['pending'], facts['last-delivered-id']}
end
return answers
