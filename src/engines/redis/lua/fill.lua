-- One step of making the set of busy locks complete. KEYS[1]: that set. ARGV: where SCAN goes on, and
-- the pattern of all locks' keys. Gives where it goes on next; '0': the set is complete.
--
-- The set has one member more, '', which says that it is complete. If the set is lost (evicted, deleted,
-- or the locks were made by a version that did not have it), so is that member, and the next listing
-- comes here. A lock that changes meanwhile is added or removed by its own script; what is added here a
-- moment too late is removed when it is looked at.
local call, busy = redis.call, KEYS[1]
if call('SISMEMBER', busy, '') == 1 then
    return '0'
end
local page = call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 2000)
for _, key in ipairs(page[2]) do
    if is_busy(key) then
        call('SADD', busy, key)
    end
end
if page[1] == '0' then
    call('SADD', busy, '')
end
return page[1]
