-- Guarantees: at most one live lease a job; a job past its time or its attempts ends instead of running.
-- Its message was taken, so there is room for another: for two while there is room for more, or too few would stay few.
-- KEYS: record. ARGV: prefix, lease_ms, max_attempts, retention_ms, max_published, message, poison error, worker, nonce.
-- Returns {'claimed', token, attempts, request, reference_key, estimate_seconds, created_ms, revived_ms, queue, warnings,
-- traceparent} or {reason}.
local lease_ms, max_attempts, retention_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local max_published, message, poison, worker, nonce = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local IDS_A_MESSAGE = 2

local job = read(KEYS[1])
if not job then return {'unknown'} end
if job.schema > SCHEMA then return {'newer_schema'} end

if not job.first_ms then redis.call('SET', taken_key(job.queue), now) end
if is_unpublished(job) then  -- a message came for it all the same: its place in the list is passed over from here on
  if not FINAL[job.status] then redis.call('HSET', KEYS[1], 'announced_ms', now) end
elseif not job.first_ms and job.announced_ms > tonumber(redis.call('GET', passed_key(job.queue)) or 0) then
  redis.call('SET', passed_key(job.queue), job.announced_ms)
end
publish_waiting(job.queue, message, max_published, lease_ms, IDS_A_MESSAGE)

if FINAL[job.status] then return {'ended'} end
if is_leased(job) and job.nonce ~= nonce then return {'leased'} end
if not is_leased(job) then
  if job.lease_ms then count('lapsed', job.queue) end
  if job.cancel then  -- its worker died before it could heed the cancel
    finish(KEYS[1], job, 'cancelled', retention_ms)
    return {'ended'}
  end
  if job.attempts >= max_attempts then
    finish(KEYS[1], job, 'failed', retention_ms, 'error', poison)
    count('poison', job.queue)
    return {'poison'}
  end
  if is_expired(job) then
    finish(KEYS[1], job, 'expired', retention_ms)
    return {'expired'}
  end
  requeue(KEYS[1], job, now)  -- a lease that lapsed: the job no longer runs
  redis.call('HSET', KEYS[1], 'worker', worker, 'nonce', nonce)
  extend(KEYS[1], job, lease_ms)
end

local answer = redis.call('HMGET', KEYS[1], 'token', 'attempts', 'request', 'reference_key', 'estimate_seconds',
                          'created_ms', 'revived_ms', 'queue', 'warnings', 'traceparent')
table.insert(answer, 1, 'claimed')
return answer
