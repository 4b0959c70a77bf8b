-- Order by key; put in front of the scripts that begin with "-- with: ordering". See docs/decisions/0050.
-- At any moment one message of a key is the key's holder: in the stream, pending, delayed or parked. The others wait in
-- the key's list. The holder's payload carries a ticket; the hash ``order`` has the ticket of each key's holder, under
-- '' the last ticket given, under '\1' the group that settles in order, and in a partition under '\2' the number of
-- partitions and its own. A settlement must show the ticket.
-- A key is used as JSON text, so that it needs no decoding.
-- makes names of keys

local function key_of(payload)
  if string.sub(payload, 1, 14) ~= '{"v":1,"key":"' then return nil end
  local at = 15
  while true do
    local stop = string.find(payload, '["\\]', at)
    if not stop then return nil end
    if string.byte(payload, stop) == 34 then return string.sub(payload, 15, stop - 1), stop end
    at = stop + 2
  end
end

local function start_holder(stream, order, key, payload)
  local ticket = string.format('%.0f', redis.call('HINCRBY', order, '', 1))
  local head = 15 + #key
  local id = redis.call('XADD', stream, '*', 'data',
    string.sub(payload, 1, head) .. ',"ticket":' .. ticket .. string.sub(payload, head + 1))
  redis.call('HSET', order, key, ticket)
  return id
end

-- In a partition: return the number of partitions if the key belongs to another partition and has no holder here. From
-- then on it never gets a holder here again, so that it can start there. See docs/decisions/0051.
local function moved(order, key)
  local layout = redis.call('HGET', order, '\2')
  if not layout then return nil end
  local count, own = string.match(layout, '^(%d+) (%d+)$')
  local home = tonumber(string.sub(redis.sha1hex(key), 1, 8), 16) % tonumber(count)
  if home == tonumber(own) or redis.call('HEXISTS', order, key) == 1 then return nil end
  return count
end

-- Add a message to its stream, or to the list of its key. Returns the entry id, or nil and the number of messages of the
-- key ahead of it. A message that has a ticket is already the holder of its key.
local function admit(stream, order, payload)
  local key, stop = key_of(payload)
  if not key or string.find(payload, '^,"ticket":%d', stop + 1) then
    return redis.call('XADD', stream, '*', 'data', payload)
  end
  if moved(order, key) then
    redis.call('RPUSH', order .. ':moving', payload) -- a worker takes it to its partition
    return nil, 0
  end
  if redis.call('HEXISTS', order, key) == 0 then return start_holder(stream, order, key, payload) end
  local ahead = redis.call('RPUSH', order .. ':key:' .. key, payload)
  redis.call('ZADD', order .. ':waiting', ahead, key)
  return nil, ahead
end

-- Release a key: its next message enters the stream. No effect if the ticket is not the holder's.
local function release(stream, order, key, ticket)
  if redis.call('HGET', order, key) ~= ticket then return end
  local list = order .. ':key:' .. key
  local payload = redis.call('LPOP', list)
  if not payload then
    redis.call('HDEL', order, key)
    return
  end
  local left = redis.call('LLEN', list)
  if left > 0 then redis.call('ZADD', order .. ':waiting', left, key) else redis.call('ZREM', order .. ':waiting', key) end
  start_holder(stream, order, key, payload)
end

-- Release the key of a message that is removed permanently, if it has one.
local function release_message(stream, order, payload)
  local key, stop = key_of(payload)
  local ticket = key and string.match(payload, '^,"ticket":(%d+)', stop + 1)
  if ticket then release(stream, order, key, ticket) end
end

-- Return true if this group owns the order of the stream. If a second group released keys, a message could start while
-- the first group still runs the previous one. A group that is gone or has no consumers is replaced.
local function owns_order(stream, order, group)
  local owner = redis.call('HGET', order, '\1')
  if owner == group then return true end
  if owner then
    for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      local facts = {}
      for j = 1, #row, 2 do facts[row[j]] = row[j + 1] end
      if facts.name == owner and facts.consumers > 0 then return false end
    end
  end
  redis.call('HSET', order, '\1', group)
  return true
end

