-- Guarantees: an attempt is counted once for each lease, before the job runs; a cancelled or lost one does not start, nor
-- one whose time ran out while it waited for its window.
-- KEYS: record. ARGV: prefix, token, lease_ms, retention_ms. Returns 1 when the job runs, else 0.
local token, lease_ms, retention_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local job = read(KEYS[1])
if not job or job.token ~= token or FINAL[job.status] then return 0 end
if job.cancel then
  finish(KEYS[1], job, 'cancelled', retention_ms)
  return 0
end
if not job.counted then
  if is_expired(job) then
    finish(KEYS[1], job, 'expired', retention_ms)
    return 0
  end
  redis.call('HINCRBY', KEYS[1], 'attempts', 1)
  redis.call('HSET', KEYS[1], 'counted', 1, 'status', 'running', 'started_ms', now)
end
extend(KEYS[1], job, lease_ms)
return 1
