-- The number of partitions of a stream. KEYS: layout. Answers {number, number before a growth that is not over or '', number
-- that a growth under way leads to or ''}.
local layout = redis.call('HMGET', KEYS[1], 'count', 'previous', 'next')
return {layout[1] or '1', layout[2] or '', layout[3] or ''}
