-- Which of these entries are to be cancelled. KEYS: cancel; ARGV: entry ids with their group. Answers per entry 1 or 0.
local answers = {}
for i = 1, #ARGV do answers[i] = redis.call('HEXISTS', KEYS[1], ARGV[i]) end
return answers
