-- Delay a message, replace the delayed message of the same name, and record the states of both jobs. One step:
-- otherwise the slower of two hosts would record a job that the other has replaced, and that job would never run.
-- KEYS: delayed, wake, debounce, ids of the delayed jobs
-- ARGV: payload, delay in ms, how long the name is remembered beyond that in ms, prefix of the jobs' hashes, id of
-- the message (empty: states are not kept), its event
-- Returns {due time, 1 if another message was replaced, 1 if a state could not be recorded}.
-- Everything that can be refused is checked before the first write: an error ends a script in the middle, and the
-- delayed message would be lost, or the new one stored without a state. A state is a view and fails no message.
-- makes names of keys
redis.call('ZCARD', KEYS[1])
redis.call('XLEN', KEYS[2])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local due = now + tonumber(ARGV[2])
local kept = string.format('%.0f', math.min(tonumber(ARGV[2]) + tonumber(ARGV[3]), 2 ^ 52))
local waiting = redis.call('GET', KEYS[3])
local replaced = 0
if waiting then replaced = redis.call('ZREM', KEYS[1], waiting) end
redis.call('ZADD', KEYS[1], due, ARGV[1])
redis.call('SET', KEYS[3], ARGV[1], 'PX', kept)
local first = redis.call('ZRANGE', KEYS[1], 0, 0)
if first[1] == ARGV[1] then redis.call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'w', '1') end

local failed = 0
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then failed = 1 end
  return answer
end

-- Quotes are escaped in JSON text, so the first match is the id. The replaced message is known only here, so the key of
-- its hash is built here. It is in the same slot: the prefix has the hash tag.
local gone = replaced == 1 and string.match(waiting, ',"id":"(%x+)","attempt":1,')
if gone and try('HGET', ARGV[4] .. gone, 'state') == 'delayed' then
  try('ZREM', KEYS[4], gone)
  try('DEL', ARGV[4] .. gone)
end
if ARGV[5] ~= '' then
  try('ZADD', KEYS[4], now, ARGV[5])
  try('HSET', ARGV[4] .. ARGV[5], 'state', 'delayed', 'event', ARGV[6], 'attempt', 1, 'delayed_ms', now)
end
return {string.format('%.0f', due), replaced, failed}
