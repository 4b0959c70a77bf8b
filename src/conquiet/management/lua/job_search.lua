-- Search a page of a stream for a text; only matching entries are sent to the client.
-- KEYS: stream; ARGV: first id, most entries, text. Returns {entries seen, id of the last or '', {{id, {field, value, …}}, …}}.
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
local found = {}
for _, entry in ipairs(page) do
  if string.find(entry[2][2] or '', ARGV[3], 1, true) then found[#found + 1] = entry end
end
return {#page, page[#page] and page[#page][1] or '', found}
