-- The id of the newest entry, '' if there is none. KEYS: stream.
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
return newest[1] and newest[1][1] or ''
