-- The state machine: the same as src/state/lock.c, function by function; a test compares the two.
--define CAPACITY 1 USED 2 HOLDERS 3 WAITERS 4 LAST_FENCE 5 LAST_PLACE 6
--define BROKEN_FENCE 7 BROKEN_AT 8 TILL 9 BROKEN_BY 10
--define NUMBER 1 SINCE 2 ENDS 3 EXTRA 4 MIN_HOLD 5
--define OWNER 6 ATTEMPT 7 INFO 8 WAKE 9 WEIGHT 10 LEASE 11
--define GRANTED 0 QUEUED 1 BUSY 2 LOST 3 BROKEN 4 RESUMED 5 MISMATCH 6 RELEASED 7
--define SAME 0 NEWER 1 OLDER 2 FOREIGN 3

if mark ~= IDLE and mark ~= HELD and mark ~= WAITED_FOR and mark ~= OTHER then
    return redis.error_reply('NOTOURS the key holds something that is no lock')
end
local waiters, last_place, head_place = 0, 0, 0
if stored then
    waiters, last_place, head_place = struct.unpack(QUEUE, stored)
end
local lock = {capacity, 0, 0, waiters, last_fence, last_place, 0, 0, till, ''}
local solo = false
if mark == OTHER then
    local fence, given_back, at
    lock[USED], lock[HOLDERS], fence, given_back, lock[BROKEN_FENCE], lock[BROKEN_AT],
        lock[BROKEN_BY], at = struct.unpack(REST, stored, WHO_AT)
    solo = at <= #stored
        and {fence, since, ends, given_back, min_hold, struct.unpack(WHO, stored, at)}
elseif mark ~= IDLE then
    lock[USED], lock[HOLDERS] = capacity, 1
    solo = {last_fence, since, ends, 0, min_hold, struct.unpack(WHO, stored, WHO_AT)}
end
local was_busy = lock[HOLDERS] + lock[WAITERS] > 0
local changed, first_holder, first_waiter = false, false, false
local head -- of the queue, once it was looked up
local first -- of the holders whose lease ends first, once it was looked up

local function text(number)
    return string.format('%.0f', number)
end

local function pack_entry(e)
    return struct.pack(ENTRY, unpack(e, 1, LEASE))
end

local function unpack_entry(packed)
    return {struct.unpack(ENTRY, packed)}
end

-- As the name of a field.
local function place_of(w)
    return struct.pack('>d', w[NUMBER])
end

-- What the first attempt is to the second: see src/state/attempt.h.
local function kin_of(attempt, other)
    if attempt == other then
        return SAME
    end
    local handle, number = string.match(attempt, '^(.*)-(%x*)$')
    local other_handle, other_number = string.match(other, '^(.*)-(%x*)$')
    if not handle or handle ~= other_handle then
        return FOREIGN
    end
    return tonumber(number, 16) > tonumber(other_number, 16) and NEWER or OLDER
end

-- ---- Entries come and go; the record's counts follow ----

local function field_of(h)
    return h[EXTRA] == 1 and 'r' .. text(h[NUMBER]) or 'o' .. h[OWNER]
end

local function put_holder(h)
    changed, first = true, nil
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
    changed, first = true, nil
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
    call('HSET', key .. ':q', place_of(w), pack_entry(w))
end

local function add_waiter(w)
    first_waiter = first_waiter or lock[WAITERS] == 0
    lock[WAITERS] = lock[WAITERS] + 1
    lock[LAST_PLACE] = lock[LAST_PLACE] + 1
    w[NUMBER] = lock[LAST_PLACE]
    if lock[WAITERS] == 1 then
        head, head_place = w, w[NUMBER]
    end
    call('HSET', key .. ':q', 'o' .. w[OWNER], place_of(w))
    put_waiter(w)
end

local function drop_waiter(w)
    changed = true
    lock[WAITERS] = lock[WAITERS] - 1
    if head and head[NUMBER] == w[NUMBER] then
        head, head_place = nil, head_place + 1
    end
    call('HDEL', key .. ':q', place_of(w), 'o' .. w[OWNER])
end

-- A table that the record counts on is gone, evicted or deleted by hand: its entries are lost, and
-- each owner is told so at its next sign of life. The lock must not stay taken by nobody.
local function forget_holders()
    lock[HOLDERS], lock[USED], changed, first = 0, 0, true, nil
    call('DEL', key .. ':h', key .. ':x', key .. ':f')
end

local function forget_waiters()
    lock[WAITERS], head, changed = 0, nil, true
    call('DEL', key .. ':q')
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

local function find_expiring()
    first = first or first_by(':x')
    return first
end

local function find_waiter(owner)
    local place = lock[WAITERS] > 0 and call('HGET', key .. ':q', 'o' .. owner)
    local found = place and call('HGET', key .. ':q', place)
    return found and unpack_entry(found) or nil
end

-- The first of so many places that is taken. Holes before it are never looked at again.
local function find_among(count)
    local places = {}
    for i = 1, count do
        places[i] = struct.pack('>d', head_place + i - 1)
    end
    local found = call('HMGET', key .. ':q', unpack(places))
    for i = 1, count do
        if found[i] then
            head_place = head_place + i - 1
            return unpack_entry(found[i])
        end
    end
    head_place = head_place + count
end

local function find_head()
    local count = 1
    while not head and lock[WAITERS] > 0 do
        if head_place > lock[LAST_PLACE] then
            forget_waiters()
            return nil
        end
        head = find_among(count)
        count = 64
    end
    return head
end

-- ---- Wake-ups ----

-- A user without the right to the channel must not fail the command midway: a wake-up may be lost.
local function publish(h, message)
    local prefix = string.match(key, '^(.-):?{')
    local handle = string.match(h[ATTEMPT], '^[^-.]*')
    redis.pcall('PUBLISH', prefix .. ':wake:' .. handle, message)
end

local function notify_granted(h, floor)
    publish(h, h[ATTEMPT] .. ' ' .. text(h[NUMBER]) .. ' ' .. text(floor))
end

-- ---- Grants ----

local function next_fence()
    local fence = lock[LAST_FENCE] + 1
    lock[LAST_FENCE] = fence < clock and clock or fence
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

-- An owner that holds it through another handle has been asked to stop, and must be gone first.
local function serve_queue()
    local w = not quiet and find_head()
    while w do
        if w[ENDS] <= now then
            drop_waiter(w)
        elseif lock[USED] + w[WEIGHT] <= lock[CAPACITY] and not find_holder(w[OWNER]) then
            drop_waiter(w)
            notify_granted(grant(w), floor_of(w))
        else
            return
        end
        w = find_head()
    end
end

local function settle()
    local h = find_expiring()
    while h and h[ENDS] <= now do
        drop_holder(h)
        h = find_expiring()
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

local function mark_of(r)
    if r[BROKEN_FENCE] == 0 and solo and solo[EXTRA] == 0 then
        return r[WAITERS] == 0 and HELD or WAITED_FOR
    end
    return r[BROKEN_FENCE] == 0 and r[HOLDERS] == 0 and r[WAITERS] == 0 and IDLE or OTHER
end

local function pack_record()
    local first = find_head()
    local r, h = lock, solo or {0, 0, 0, 0, 0}
    local new_mark = mark_of(r)
    local packed = struct.pack(QUEUE_HEAD, r[WAITERS], r[LAST_PLACE], head_place,
        first and first[ENDS] or 0, new_mark, h[SINCE], h[ENDS], h[MIN_HOLD], r[TILL], r[CAPACITY],
        r[LAST_FENCE])
    if new_mark == OTHER then
        packed = packed .. struct.pack(REST, r[USED], r[HOLDERS], h[NUMBER], h[EXTRA],
            r[BROKEN_FENCE], r[BROKEN_AT], r[BROKEN_BY])
    end
    return solo and packed .. struct.pack(WHO, unpack(solo, OWNER, LEASE)) or packed
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
        call('SET', key, pack_record(), 'PX', math.ceil((lock[TILL] - now) / 1000))
    else
        call('SET', key, pack_record(), 'KEEPTTL')
    end
    local busy = lock[HOLDERS] + lock[WAITERS] > 0
    if busy ~= was_busy then
        call(busy and 'SADD' or 'SREM', BUSY_SET, key)
    end
    if (later or first_holder) and lock[HOLDERS] > 0 and not solo then
        keep_tables({':h', ':x', ':f'})
    end
    if (later or first_waiter) and lock[WAITERS] > 0 then
        keep_tables({':q'})
    end
end

-- ---- Replies that several commands give ----

local function until_expiry()
    local h = find_expiring()
    return h and h[ENDS] - now or 0
end

local function in_way()
    local h = find_expiring()
    return h and struct.pack('>ddsss', h[ENDS] - now, h[NUMBER], h[OWNER], h[ATTEMPT], h[INFO])
end

-- Only the head needs to watch the holder's lease.
local function reply_queued(w)
    local mine = find_head()[NUMBER] == w[NUMBER]
    return {QUEUED, 0, 0, mine and until_expiry() or 0, 0, in_way()}
end

local function reply_missing(fence)
    return {fence ~= 0 and fence < lock[BROKEN_FENCE] and BROKEN or LOST}
end
