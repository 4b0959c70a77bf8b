-- The server's clock in milliseconds. KEYS: any key, so that a cluster knows where to ask.
local t = redis.call('TIME')
return string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
