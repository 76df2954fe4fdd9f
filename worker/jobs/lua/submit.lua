-- Guarantees: record and due entry appear together; never more than max_queue unfinished jobs; of one idempotency key,
-- one job. Its message goes out here, unless enough of them wait.
-- KEYS: record[, idempotency]. ARGV: prefix, max_queue, max_published, announce_ms, retention_ms, expires_ms
-- (0: never), fingerprint, message, then the record's fields as pairs.
-- Returns {'stored', record…} | {'full'} | {'conflict'}.
local max_queue, max_published, announce_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local retention_ms, expires_ms, fingerprint = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local message = ARGV[8]

local function stored(key)
  local fields = redis.call('HGETALL', key)
  table.insert(fields, 1, 'stored')
  return fields
end

if redis.call('EXISTS', KEYS[1]) == 1 then return stored(KEYS[1]) end  -- this very call again: its answer was lost

if KEYS[2] then
  local seen = redis.call('HMGET', KEYS[2], 'fingerprint', 'record')
  if seen[1] and redis.call('EXISTS', seen[2]) == 1 then
    if seen[1] ~= fingerprint then return {'conflict'} end
    return stored(seen[2])
  end
end

local unfinished = 0
for _, queue in ipairs({'interactive', 'bulk'}) do
  unfinished = unfinished + redis.call('ZCARD', due_key(queue)) + redis.call('ZCARD', leases_key(queue))
end
if unfinished >= max_queue then return {'full'} end

redis.call('HSET', KEYS[1], 'created_ms', now, unpack(ARGV, 9))
if expires_ms > 0 then redis.call('HSET', KEYS[1], 'expires_ms', now + expires_ms) end
local job = read(KEYS[1])
if line_up(KEYS[1], job, max_published, announce_ms) then publish(job.queue, job.id, now, message) end
redis.call('ZADD', ages_key(job.queue), now, job.id)
count('submitted', job.queue)
if users_key(job) then redis.call('SADD', users_key(job), job.id) end
if KEYS[2] then
  redis.call('HSET', KEYS[2], 'fingerprint', fingerprint, 'record', KEYS[1])
  redis.call('PEXPIRE', KEYS[2], retention_ms)
end
return stored(KEYS[1])
