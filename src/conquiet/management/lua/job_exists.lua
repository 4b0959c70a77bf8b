-- Answers 1 if a key exists. KEYS: key.
return redis.call('EXISTS', KEYS[1])
