-- Guarantees: the attempt in hand is given back, once, while its holder keeps the lease: the job waits again, in the
-- worker, and its start counts a new one.
-- KEYS: record. ARGV: prefix, token. Returns 1 when the job is its holder's, else 0.
local token = tonumber(ARGV[2])

local job = read(KEYS[1])
if not job or job.token ~= token or FINAL[job.status] then return 0 end
if job.counted then
  redis.call('HINCRBY', KEYS[1], 'attempts', -1)
  redis.call('HSET', KEYS[1], 'status', 'queued')
  redis.call('HDEL', KEYS[1], 'counted')
end
return 1
