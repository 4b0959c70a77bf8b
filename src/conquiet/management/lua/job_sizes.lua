-- Return the sizes of keys of any type, 0 for missing keys. KEYS: keys.
local answers = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'zset' then answers[i] = redis.call('ZCARD', key)
  elseif kind == 'list' then answers[i] = redis.call('LLEN', key)
  elseif kind == 'stream' then answers[i] = redis.call('XLEN', key)
  else answers[i] = 0 end
end
return answers
