-- Return the number of partitions of a stream. KEYS: layout. Returns {number, number before an unfinished growth or '', new
-- number of a growth in progress or ''}.
local layout = redis.call('HMGET', KEYS[1], 'count', 'previous', 'next')
return {layout[1] or '1', layout[2] or '', layout[3] or ''}
