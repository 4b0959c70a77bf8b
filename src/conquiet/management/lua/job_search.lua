-- Look for a text in a page of a stream; only entries that have it are sent to the client.
-- KEYS: stream; ARGV: from this id on, how many, text. Answers {entries seen, id of the last or '', {{id, {field, value, …}}, …}}.
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
local found = {}
for _, entry in ipairs(page) do
  if string.find(entry[2][2] or '', ARGV[3], 1, true) then found[#found + 1] = entry end
end
return {#page, page[#page] and page[#page][1] or '', found}
