-- Read or write the progress of a bulk change. KEYS: progress; ARGV: nothing to read, else the progress and ms it is kept.
if #ARGV == 0 then return redis.call('GET', KEYS[1]) or '' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
