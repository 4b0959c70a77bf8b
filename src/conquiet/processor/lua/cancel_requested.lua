-- Return which entries have a request to cancel. KEYS: cancel; ARGV: entry ids with their group. Returns per entry 1 or 0.
local answers = {}
for i = 1, #ARGV do answers[i] = redis.call('HEXISTS', KEYS[1], ARGV[i]) end
return answers
