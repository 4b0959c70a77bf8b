-- Store the result of a job. KEYS: result; ARGV: state, value, ms it is kept. A later end replaces an earlier one.
redis.call('DEL', KEYS[1])
redis.call('XADD', KEYS[1], '*', 'state', ARGV[1], 'value', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
