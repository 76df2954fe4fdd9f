-- Guarantees: extends the lease of its holder alone, and tells it of a cancel.
-- KEYS: record. ARGV: prefix, token, lease_ms. Returns 'held', 'cancelled' or 'lost'.
local token, lease_ms = tonumber(ARGV[2]), tonumber(ARGV[3])

local job = read(KEYS[1])
if not job or job.token ~= token then return 'lost' end
if job.status == 'cancelled' then return 'cancelled' end
if FINAL[job.status] then return 'lost' end
extend(KEYS[1], job, lease_ms)
return job.cancel and 'cancelled' or 'held'
