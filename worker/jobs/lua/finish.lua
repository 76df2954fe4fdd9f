-- Guarantees: a job ends once, by the holder of its current token; once a cancel was accepted it ends as cancelled.
-- KEYS: record. ARGV: prefix, token, status, retention_ms, then fields to store as pairs.
-- Returns 1 when the job has ended as asked, else 0.
local token, status, retention_ms = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local job = read(KEYS[1])
if not job or job.token ~= token then return 0 end
if FINAL[job.status] then return job.status == status and 1 or 0 end  -- this very call again: its answer was lost
if not job.lease_ms then return 0 end
if job.cancel and status ~= 'cancelled' then
  finish(KEYS[1], job, 'cancelled', retention_ms)
  return 0
end
if status == 'succeeded' and job.status ~= 'running' then return 0 end
finish(KEYS[1], job, status, retention_ms, unpack(ARGV, 5))
return 1
