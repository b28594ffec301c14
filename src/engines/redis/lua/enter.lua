--include head.lua
-- Enter: take, or stand in line. ARGV: packed numbers, who. The numbers are lease, min_hold,
-- window, capacity, and a sum: 1 for all of the capacity, 2 when a BLPOP on the attempt's own list
-- comes right behind: it is answered at once unless the attempt is in line.
local lease, hold, window, wanted, kind = struct.unpack('>dddI4I4', ARGV[1])

-- The common case, a free lock taken whole, needs none of the machine.
if mark == IDLE and kind == 1 and (capacity == wanted or capacity == 0) then
    local fence = last_fence < now and now or last_fence + 1
    local later = till < now + lease + DAY
    if later then
        till = now + lease + DAY + HOUR
    end
    local packed = struct.pack(HEAD, HELD, now, now + lease, hold, till, wanted, fence) .. ARGV[2]
    if later then
        local line = string.sub(stored or string.rep('\0', HEAD_AT - 1), 1, HEAD_AT - 1)
        call('SET', key, line .. packed, 'PX', math.ceil((till - now) / 1000))
    else
        call('SETRANGE', key, HEAD_OFFSET, packed)
    end
    return fence
end
--include queue.lua
--include machine.lua
local who = {0, 0, 0, 0, hold, struct.unpack(WHO, ARGV[2])}
local weight = who[WEIGHT]

-- In line with a sign of life: at the end, or where the owner stands already (asked again, or
-- resumed).
local function stand_in_line(there)
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

local function take_or_queue()
    local there = find_waiter(who[OWNER])
    if there and there[WEIGHT] ~= weight then -- it wants something else: back to the end
        drop_waiter(there)
        serve_queue()
        there = nil
    end
    if lock[WAITERS] == 0 and lock[USED] + weight <= wanted then
        who[ENDS] = now + lease
        return reply_granted(grant(who))
    end
    if window > 0 then
        return stand_in_line(there)
    end
    return {BUSY, 0, 0, until_expiry()}
end

-- The owner is here with an older attempt: that one is dead, this one goes on in its place.
local function resume(old)
    if weight > old[WEIGHT] then
        return {UPGRADE}
    end
    drop_holder(old)
    who[ENDS] = now + lease
    grant(who)
    if weight < old[WEIGHT] then
        serve_queue()
    end
    return reply_granted(who)
end

local function enter()
    settle()
    if lock[CAPACITY] ~= 0 and lock[CAPACITY] ~= wanted then
        return {MISMATCH, 0, 0, 0, lock[CAPACITY]}
    end
    lock[CAPACITY] = wanted
    local mine = find_holder(who[OWNER])
    if not mine then
        return take_or_queue()
    elseif mine[ATTEMPT] == who[ATTEMPT] then
        return reply_granted(mine)
    end
    return resume(mine)
end

local reply = enter()
finish(lease)
if kind >= 2 and reply[1] ~= QUEUED then
    push(who, '-', '1')
end
return reply
