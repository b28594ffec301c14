-- The state machine: the same as src/state/lock.c, function by function; a test compares the two.
--define CAPACITY 1 USED 2 HOLDERS 3 WAITERS 4 LAST_FENCE 5 LAST_PLACE 6
--define BROKEN_FENCE 7 BROKEN_AT 8 TILL 9 BROKEN_BY 10
--define NUMBER 1 SINCE 2 ENDS 3 EXTRA 4 MIN_HOLD 5
--define OWNER 6 ATTEMPT 7 INFO 8 WAKE 9 WEIGHT 10 LEASE 11
--define GRANTED 0 QUEUED 1 BUSY 2 LOST 3 BROKEN 4 RESUMED 5 MISMATCH 6 UPGRADE 7 RELEASED 8

local call = redis.call
local lock = {capacity, used, holders, waiters, last_fence, last_place, broken_fence, broken_at,
    till, broken_by}
local solo = stored and at <= #stored and
    {h_number, h_since, h_ends, h_extra, h_min_hold, struct.unpack(WHO, stored, at)}
local changed, first_holder, first_waiter = false, false, false
local head -- of the line, once it was looked up

local function text(number)
    return string.format('%.0f', number)
end

local function pack_entry(e)
    return struct.pack(ENTRY, unpack(e, 1, LEASE))
end

local function unpack_entry(packed)
    return {struct.unpack(ENTRY, packed)}
end

-- ---- Entries come and go; the record's counts follow ----

local function field_of(h)
    return h[EXTRA] == 1 and 'r' .. text(h[NUMBER]) or 'o' .. h[OWNER]
end

local function put_holder(h)
    changed = true
    if h[WEIGHT] >= lock[CAPACITY] then
        solo = h
        return
    end
    local field = field_of(h)
    call('HSET', key .. ':h', field, pack_entry(h))
    call('ZADD', key .. ':x', h[ENDS], field)
    call('ZADD', key .. ':f', h[NUMBER], field)
end

local function add_holder(h)
    first_holder = first_holder or lock[HOLDERS] == 0
    lock[HOLDERS] = lock[HOLDERS] + 1
    lock[USED] = lock[USED] + h[WEIGHT]
    put_holder(h)
end

local function drop_field(field)
    call('HDEL', key .. ':h', field)
    call('ZREM', key .. ':x', field)
    call('ZREM', key .. ':f', field)
end

local function drop_holder(h)
    changed = true
    lock[HOLDERS] = lock[HOLDERS] - 1
    lock[USED] = lock[USED] - h[WEIGHT]
    if solo then
        solo = false
    else
        drop_field(field_of(h))
    end
end

local function put_waiter(w)
    changed = true
    if head and head[NUMBER] == w[NUMBER] then
        head = w
    end
    call('HSET', key .. ':q', w[OWNER], pack_entry(w))
end

local function add_waiter(w)
    first_waiter = first_waiter or lock[WAITERS] == 0
    lock[WAITERS] = lock[WAITERS] + 1
    lock[LAST_PLACE] = lock[LAST_PLACE] + 1
    w[NUMBER] = lock[LAST_PLACE]
    if lock[WAITERS] == 1 then
        head = w
    end
    call('ZADD', key .. ':l', w[NUMBER], w[OWNER])
    put_waiter(w)
end

local function drop_waiter(w)
    changed = true
    lock[WAITERS] = lock[WAITERS] - 1
    if head and head[NUMBER] == w[NUMBER] then
        head = nil
    end
    call('HDEL', key .. ':q', w[OWNER])
    call('ZREM', key .. ':l', w[OWNER])
end

-- A table that the record counts on is gone, evicted or deleted by hand: its entries are lost, and
-- each owner is told so at its next sign of life. The lock must not stay taken by nobody.
local function forget_holders()
    lock[HOLDERS], lock[USED], changed = 0, 0, true
    call('DEL', key .. ':h', key .. ':x', key .. ':f')
end

local function forget_waiters()
    lock[WAITERS], head, changed = 0, nil, true
    call('DEL', key .. ':q', key .. ':l')
end

local function find_holder(owner)
    if solo then
        return solo[OWNER] == owner and solo[EXTRA] == 0 and solo or nil
    end
    local found = lock[HOLDERS] > 0 and call('HGET', key .. ':h', 'o' .. owner)
    return found and unpack_entry(found) or nil
end

local function first_by(order)
    if solo or lock[HOLDERS] == 0 then
        return solo or nil
    end
    local field = call('ZRANGE', key .. order, 0, 0)[1]
    local found = field and call('HGET', key .. ':h', field)
    if not found then
        forget_holders()
        return nil
    end
    return unpack_entry(found)
end

local function find_waiter(owner)
    local found = lock[WAITERS] > 0 and call('HGET', key .. ':q', owner)
    return found and unpack_entry(found) or nil
end

local function find_head()
    if head or lock[WAITERS] == 0 then
        return head
    end
    local owner = call('ZRANGE', key .. ':l', 0, 0)[1]
    local found = owner and call('HGET', key .. ':q', owner)
    if not found then
        forget_waiters()
        return nil
    end
    head = unpack_entry(found)
    return head
end

-- ---- Wake-ups ----

local function push(h, message, milliseconds)
    local list = key .. ':w:' .. h[ATTEMPT]
    call('RPUSH', list, message)
    call('PEXPIRE', list, milliseconds)
end

-- A user without the right to the channel must not fail the command midway: a wake-up may be lost.
local function publish(h, message)
    local prefix = string.match(key, '^(.-):{')
    local handle = string.match(h[ATTEMPT], '^[^-]*')
    redis.pcall('PUBLISH', prefix .. ':wake:' .. handle, message)
end

local function tell_granted(h, floor)
    local numbers = text(h[NUMBER]) .. ' ' .. text(floor)
    if h[WAKE] == 'L' then
        push(h, numbers, math.ceil((h[ENDS] - now) / 1000) + 1000)
    elseif h[WAKE] == 'P' then
        publish(h, h[ATTEMPT] .. ' ' .. numbers)
    end
end

-- ---- Grants ----

local function next_fence()
    local fence = lock[LAST_FENCE] + 1
    lock[LAST_FENCE] = fence < now and now or fence
    return lock[LAST_FENCE]
end

local function floor_of(h)
    if lock[HOLDERS] < 2 then
        return h[NUMBER]
    end
    local oldest = call('ZRANGE', key .. ':f', 0, 0, 'WITHSCORES')[2]
    oldest = oldest and tonumber(oldest) or h[NUMBER]
    return oldest < h[NUMBER] and oldest or h[NUMBER]
end

local function reply_granted(h)
    return {GRANTED, h[NUMBER], floor_of(h), h[ENDS] - now}
end

-- `h` has who, and until when; it becomes a holder.
local function grant(h)
    h[NUMBER], h[SINCE], h[EXTRA] = next_fence(), now, 0
    add_holder(h)
    return h
end

-- ---- Time passes ----

local function serve_queue()
    local w = find_head()
    while w do
        if w[ENDS] <= now then
            drop_waiter(w)
        elseif lock[USED] + w[WEIGHT] <= lock[CAPACITY] then
            drop_waiter(w)
            tell_granted(grant(w), floor_of(w))
        else
            return
        end
        w = find_head()
    end
end

local function settle()
    local h = first_by(':x')
    while h and h[ENDS] <= now do
        drop_holder(h)
        h = first_by(':x')
    end
    serve_queue()
end

-- ---- The end of every command ----

local function keep_tables(names)
    local left = math.ceil((lock[TILL] - now) / 1000)
    for _, name in ipairs(names) do
        call('PEXPIRE', key .. name, left)
    end
end

-- `lease` is how long what was written must stay beyond the day. Tables are kept an hour longer
-- than needed, so that not every command has to say so.
local function finish(lease)
    if not changed then
        return
    end
    local later = lock[TILL] < now + lease + DAY
    if later then
        lock[TILL] = now + lease + DAY + HOUR
    end
    local r, h = lock, solo or {0, 0, 0, 0, 0}
    local packed = struct.pack(RECORD, mark, r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9],
        r[10], unpack(h, 1, MIN_HOLD))
    if solo then
        packed = packed .. struct.pack(WHO, unpack(solo, OWNER, LEASE))
    end
    if later then
        call('SET', key, packed, 'PX', math.ceil((lock[TILL] - now) / 1000))
    else
        call('SET', key, packed, 'KEEPTTL')
    end
    if (later or first_holder) and lock[HOLDERS] > 0 and not solo then
        keep_tables({':h', ':x', ':f'})
    end
    if (later or first_waiter) and lock[WAITERS] > 0 then
        keep_tables({':q', ':l'})
    end
end

-- ---- Replies that several commands give ----

local function until_expiry()
    local h = first_by(':x')
    return h and h[ENDS] - now or 0
end

-- Only the head needs to watch the holder's lease.
local function reply_queued(w)
    local mine = find_head()[NUMBER] == w[NUMBER]
    return {QUEUED, 0, 0, mine and until_expiry() or 0}
end

local function reply_missing(fence)
    return {fence ~= 0 and fence < lock[BROKEN_FENCE] and BROKEN or LOST}
end
