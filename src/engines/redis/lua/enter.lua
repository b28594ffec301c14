--define SERVER ARGV[3]
--include head.lua
-- Enter: take, or enter the queue. ARGV: packed numbers, who, server. The numbers are lease, min_hold,
-- window, capacity, and 1 for all of the capacity.
local lease, hold, window, wanted, kind = struct.unpack('>dddI4I4', ARGV[1])
-- A marker that does not allow for this lease came with a slot from another server, or lacks the last change.
if longest and (lease > longest or hold > longest) then
    return {UNMARKED}
end
if quiet then
    return quiet < 0 and {UNMARKED} or {QUIET, 0, 0, quiet}
end
if till < now + lease + DAY then
--include sweep.lua
end

-- The common case, a free lock taken whole, needs none of the machine.
if mark == IDLE and kind == 1 and (capacity == wanted or capacity == 0) then
    local fence = last_fence < clock and clock or last_fence + 1
    local later = till < now + lease + DAY
    if later then
        till = now + lease + DAY + HOUR
    end
    local packed = struct.pack(HEAD, HELD, now, now + lease, hold, till, wanted, fence) .. ARGV[2]
    if later then
        local queue = string.sub(stored or string.rep('\0', HEAD_AT - 1), 1, HEAD_AT - 1)
        call('SET', key, queue .. packed, 'PX', math.ceil((till - now) / 1000))
    else
        call('SETRANGE', key, HEAD_OFFSET, packed)
    end
    call('SADD', BUSY_SET, key)
    return fence
end
--include queue.lua
--include machine.lua
local who = {0, 0, 0, 0, hold, struct.unpack(WHO, ARGV[2])}
local weight = who[WEIGHT]

-- Into the queue with a keep-alive: at the end, or where the owner is already (asked again, or
-- resumed).
local function enter_queue(there)
    who[EXTRA] = window < lease and window or lease
    who[ENDS] = now + who[EXTRA]
    if there then
        who[NUMBER], who[SINCE] = there[NUMBER], there[SINCE]
        put_waiter(who)
    else
        who[SINCE] = now
        add_waiter(who)
    end
    return reply_queued(who)
end

-- `rival`: the owner holds it through another handle; then it is not granted now. A try that fails
-- leaves everything as it was: it asks nobody to stop.
local function take_or_queue(rival)
    local there = find_waiter(who[OWNER])
    local kin = there and kin_of(who[ATTEMPT], there[ATTEMPT]) or SAME
    if kin == OLDER then
        return {RESUMED}
    end
    -- It wants something else: back to the end. Or it does not want to wait any more.
    if there and (window > 0 and there[WEIGHT] ~= weight or window == 0 and kin == NEWER) then
        drop_waiter(there)
        serve_queue()
        there = nil
    end
    if not rival and lock[WAITERS] == 0 and lock[USED] + weight <= wanted then
        who[ENDS] = now + lease
        return reply_granted(grant(who))
    end
    if window > 0 then
        if rival then
            publish(rival, rival[ATTEMPT])
        end
        return enter_queue(there)
    end
    return {BUSY, 0, 0, until_expiry(), 0, in_way()}
end

-- The caller of the older attempt gave it up: this one goes on in its place.
local function resume(old)
    drop_holder(old)
    who[ENDS] = now + lease
    grant(who)
    if weight < old[WEIGHT] then
        serve_queue()
    end
    return reply_granted(who)
end

-- The owner holds it.
local function enter_again(mine)
    local kin = kin_of(who[ATTEMPT], mine[ATTEMPT])
    if kin == SAME then
        return reply_granted(mine)
    elseif kin == OLDER then
        return {RESUMED}
    elseif kin == FOREIGN then
        return take_or_queue(mine)
    elseif weight <= mine[WEIGHT] then
        return resume(mine)
    end
    drop_holder(mine) -- it needs more than the one that was given up: from the end of the queue
    serve_queue()
    return take_or_queue(find_holder(who[OWNER]))
end

local function enter()
    settle()
    if lock[CAPACITY] ~= 0 and lock[CAPACITY] ~= wanted then
        return {MISMATCH, 0, 0, 0, lock[CAPACITY]}
    end
    lock[CAPACITY] = wanted
    local mine = find_holder(who[OWNER])
    if mine then
        return enter_again(mine)
    end
    return take_or_queue()
end

local reply = enter()
finish(lease)
return reply
