-- Guarantees: a job that does not run ends at once; one that runs can from here on only end as cancelled.
-- KEYS: record. ARGV: prefix, retention_ms, nonce. Returns 'cancelled', 'cancelling', 'ended', 'unknown' or 'newer_schema'.
local retention_ms, nonce = tonumber(ARGV[2]), ARGV[3]

local job = read(KEYS[1])
if not job then return 'unknown' end
if job.schema > SCHEMA then return 'newer_schema' end
if FINAL[job.status] then  -- by this very call, perhaps, whose answer was lost
  return redis.call('HGET', KEYS[1], 'cancel_nonce') == nonce and 'cancelled' or 'ended'
end
if job.status == 'running' and is_leased(job) then
  redis.call('HSET', KEYS[1], 'cancel', 1)
  redis.call('PUBLISH', ARGV[1] .. ':cancelled', job.id)  -- a hint: its worker's next heartbeat tells it as well
  return 'cancelling'
end
finish(KEYS[1], job, 'cancelled', retention_ms, 'cancel_nonce', nonce)
return 'cancelled'
