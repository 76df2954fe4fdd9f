-- Guarantees: only a job that ended at least age_ms ago is forgotten.
-- KEYS: record. ARGV: prefix, age_ms. Returns 1 when it is, else 0.
local job = read(KEYS[1])
if not job or job.schema > SCHEMA or not FINAL[job.status] then return 0 end
local finished_ms = tonumber(redis.call('HGET', KEYS[1], 'finished_ms'))
if not finished_ms or finished_ms > now - tonumber(ARGV[2]) then return 0 end
return redis.call('DEL', KEYS[1])
