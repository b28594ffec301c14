--include head.lua
-- A sign of life. ARGV: owner and attempt, fence (0: a waiter), lease.
local name, lease = ARGV[1], ARGV[3] + 0

-- The common case: the only holder, in time, nobody in line.
if holders == 1 and waiters == 0 and h_ends > now and h_extra == 0 and h_number >= broken_fence
    and string.sub(stored, at, at + #name - 1) == name then
    local later = till < now + lease + DAY
    if later then
        till = now + lease + DAY + HOUR
    end
    local packed = struct.pack(RECORD, mark, capacity, used, 1, 0, last_fence, last_place,
        broken_fence, broken_at, till, broken_by, h_number, h_since, now + lease, 0, h_min_hold)
        .. string.sub(stored, at)
    if later then
        redis.call('SET', key, packed, 'PX', math.ceil((till - now) / 1000))
    else
        redis.call('SET', key, packed, 'KEEPTTL')
    end
    return h_number
end
--include machine.lua
local owner, attempt = struct.unpack('ss', name)

local function keep_holder(h)
    if h[ATTEMPT] ~= attempt then
        return {RESUMED}
    elseif h[NUMBER] < lock[BROKEN_FENCE] then
        return {BROKEN, 0, 0, h[ENDS] - now}
    end
    h[ENDS] = now + lease
    put_holder(h)
    return reply_granted(h)
end

local function keep_waiter(w)
    if w[ATTEMPT] ~= attempt then
        return {RESUMED}
    end
    w[ENDS] = now + w[EXTRA]
    put_waiter(w)
    return reply_queued(w)
end

local function keep()
    settle()
    local h = find_holder(owner)
    if h then
        return keep_holder(h)
    end
    local w = find_waiter(owner)
    if w then
        return keep_waiter(w)
    end
    return reply_missing(ARGV[2] + 0)
end

local reply = keep()
finish(lease)
return reply
