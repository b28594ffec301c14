--include head.lua
-- Give back and hand over. ARGV: owner and attempt, fence.
local name = ARGV[1]

local mine = holders == 1 and h_ends > now and h_extra == 0 and h_min_hold == 0 and till > now + DAY
    and string.sub(stored, at, at + #name - 1) == name

-- The common case: the only holder, in time, nobody in line.
if mine and waiters == 0 then
    redis.call('SET', key, struct.pack(RECORD, mark, capacity, 0, 0, 0, last_fence, last_place,
        broken_fence, broken_at, till, broken_by, 0, 0, 0, 0, 0), 'KEEPTTL')
    return 0
end
--include pass.lua
--include machine.lua
local owner, attempt = struct.unpack('ss', name)

local function give_back(h)
    local keep_until = h[SINCE] + h[MIN_HOLD]
    if h[MIN_HOLD] > 0 and keep_until > now then
        if not solo then
            drop_field(field_of(h))
        end
        h[EXTRA], h[ENDS] = 1, keep_until
        put_holder(h)
    else
        drop_holder(h)
        serve_queue()
    end
end

local function release()
    settle()
    local h = find_holder(owner)
    if not h then
        return reply_missing(ARGV[2] + 0)
    elseif h[ATTEMPT] ~= attempt then
        return {RESUMED}
    end
    give_back(h)
    return {RELEASED}
end

local reply = release()
finish(0)
return reply
