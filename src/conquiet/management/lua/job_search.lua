-- Search a page of a stream for a text; only matching entries are sent to the client.
-- KEYS: stream; ARGV: id before the first entry, most entries, text
-- Returns {id of the last entry (false at the end), entries seen, {{id, {field, value, …}}, …}}.
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
local found = {}
for _, entry in ipairs(page) do
  if string.find(entry[2][2] or '', ARGV[3], 1, true) then found[#found + 1] = entry end
end
return {#page == tonumber(ARGV[2]) and page[#page][1], #page, found}
