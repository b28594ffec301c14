--define SERVER ARGV[3]
--include head.lua
-- A sign of life. ARGV: fence (0: a waiter), owner and attempt; lease.
local name, lease = ARGV[1], ARGV[2] + 0

-- The common case: the only holder, in time, nobody in the queue.
if mark == HELD and ends > now and till > now + lease + DAY
    and string.sub(stored, FENCE_AT, FENCE_AT - 1 + #name) == name then
    call('SETRANGE', key, ENDS_OFFSET, struct.pack('>d', now + lease))
    return last_fence
end
--include machine.lua
local fence, owner, attempt = struct.unpack('>dss', name)

-- One who is to stop, because its owner waits elsewhere, keeps what is left of its lease.
local function keep_holder(h, w)
    if h[NUMBER] < lock[BROKEN_FENCE] then
        return {BROKEN, 0, 0, h[ENDS] - now}
    elseif w and w[ENDS] > now then
        return {RESUMED, 0, 0, h[ENDS] - now}
    end
    h[ENDS] = now + lease
    put_holder(h)
    return reply_granted(h)
end

local function keep_waiter(w)
    w[ENDS] = now + w[EXTRA]
    put_waiter(w)
    return reply_queued(w)
end

local function keep()
    settle()
    local h, w = find_holder(owner), find_waiter(owner)
    if h and h[ATTEMPT] == attempt then
        return keep_holder(h, w)
    elseif w and w[ATTEMPT] == attempt then
        return keep_waiter(w)
    end
    return (h or w) and {RESUMED} or reply_missing(fence)
end

local reply = keep()
finish(lease)
return reply
