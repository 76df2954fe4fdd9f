-- Guarantees: only a job that failed is queued again, as if it came now, with all attempts before it; a late holder of
-- one of its leases is fenced off. The caller publishes it unless its announced_ms is UNPUBLISHED.
-- KEYS: record. ARGV: prefix, max_published, announce_ms, expires_ms (0: never), nonce.
-- Returns 'requeued', 'unknown', 'newer_schema', or the status of a job that has not failed.
local max_published, announce_ms, expires_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local nonce = ARGV[5]

local job = read(KEYS[1])
if not job then return 'unknown' end
if job.schema > SCHEMA then return 'newer_schema' end
if job.status ~= 'failed' then  -- queued by this very call, perhaps, whose answer was lost
  return redis.call('HGET', KEYS[1], 'revive_nonce') == nonce and 'requeued' or job.status
end
redis.call('HDEL', KEYS[1], 'error', 'finished_ms', 'expires_ms', 'first_ms')
redis.call('HSET', KEYS[1], 'attempts', 0, 'revived_ms', now, 'revive_nonce', nonce)
job.expires_ms = expires_ms > 0 and now + expires_ms or nil
if job.expires_ms then redis.call('HSET', KEYS[1], 'expires_ms', job.expires_ms) end
redis.call('PERSIST', KEYS[1])
redis.call('ZADD', ages_key(job.queue), now, job.id)
count('requeued', job.queue)
if users_key(job) then redis.call('SADD', users_key(job), job.id) end
requeue(KEYS[1], job, now + announce_ms)
line_up(KEYS[1], job, max_published, announce_ms)
return 'requeued'
