-- The other common case: from one who held it whole to one who wants all of it, with nobody dead at
-- the head of the line. The same as the machine does, without the machine.
if mine and waiters > 0 then
    local owners = redis.call('ZRANGE', key .. ':l', 0, 1)
    local entries = owners[1] and redis.call('HMGET', key .. ':q', unpack(owners))
    local head, second = entries and entries[1], entries and entries[2]
    if head and (second or waiters == 1) then
        local _, _, ends, _, min_hold, owner, attempt, _, wake, weight = struct.unpack(ENTRY, head)
        if ends > now and weight == capacity
            and (not second or select(3, struct.unpack('>ddd', second)) > now) then
            local fence = last_fence < now and now or last_fence + 1
            local number = string.format('%.0f', fence)
            redis.call('HDEL', key .. ':q', owner)
            redis.call('ZREM', key .. ':l', owner)
            redis.call('SET', key, struct.pack(RECORD, mark, capacity, capacity, 1, waiters - 1,
                fence, last_place, broken_fence, broken_at, till, broken_by, fence, now, ends, 0,
                min_hold) .. string.sub(head, 41), 'KEEPTTL')
            if wake == 'L' then
                local list = key .. ':w:' .. attempt
                redis.call('RPUSH', list, number .. ' ' .. number)
                redis.call('PEXPIRE', list, math.ceil((ends - now) / 1000) + 1000)
            else
                redis.pcall('PUBLISH', string.match(key, '^(.-):{') .. ':wake:'
                    .. string.match(attempt, '^[^-]*'), attempt .. ' ' .. number .. ' ' .. number)
            end
            return 0
        end
    end
end
