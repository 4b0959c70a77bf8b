-- Delete entries of a stream that no group has pending. KEYS: stream; ARGV: from, to, most entries to read
-- Returns {entries seen, deleted, id of the last or ''}.
local groups = {}
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    for i = 1, #group, 2 do
      if group[i] == 'name' then groups[#groups + 1] = group[i + 1] end
    end
  end
end
local page = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local deleted = 0
for _, entry in ipairs(page) do
  local pending = false
  for _, group in ipairs(groups) do
    if #redis.call('XPENDING', KEYS[1], group, entry[1], entry[1], 1) > 0 then pending = true end
  end
  if not pending then deleted = deleted + redis.call('XDEL', KEYS[1], entry[1]) end
end
return {#page, deleted, page[#page] and page[#page][1] or ''}
