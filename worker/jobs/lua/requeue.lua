-- Guarantees: only the lease's holder hands a job back; a cancel that came meanwhile ends it instead.
-- KEYS: record. ARGV: prefix, token, delay_ms, 'give_back' | 'keep' (the attempt), retention_ms, announce_ms (0, or the
-- time after which to look at a job that the caller now announces itself, first in the list).
-- Returns 1 when the job waits again, else 0.
local token, delay_ms, attempt, retention_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local announce_ms = tonumber(ARGV[6])

local job = read(KEYS[1])
if not job or job.token ~= token or not job.lease_ms then return 0 end
if job.cancel then
  finish(KEYS[1], job, 'cancelled', retention_ms)
  return 0
end
if attempt == 'give_back' and job.counted then redis.call('HINCRBY', KEYS[1], 'attempts', -1) end
if attempt == 'keep' then count('retried', job.queue) end
requeue(KEYS[1], job, now + delay_ms + announce_ms)
if announce_ms > 0 then redis.call('HSET', KEYS[1], 'first_ms', now) end
return 1
