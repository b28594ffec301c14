--define SERVER ARGV[2]
--include head.lua
-- Give back and hand over. ARGV: fence, owner and attempt.
local name = ARGV[1]
local mine = (mark == HELD or mark == WAITED_FOR) and ends > now and min_hold == 0
    and till > now + DAY and string.sub(stored, FENCE_AT, FENCE_AT - 1 + #name) == name

-- The common case: the only holder, in time, nobody in the queue.
if mine and mark == HELD then
    call('SETRANGE', key, MARK_OFFSET, 'I')
    call('SREM', BUSY_SET, key)
    return 0
end
--include pass.lua
--include machine.lua
local fence, owner, attempt = struct.unpack('>dss', name)

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
    end
    serve_queue()
end

local function release()
    settle()
    local h = find_holder(owner)
    if not h then
        return reply_missing(fence)
    elseif h[ATTEMPT] ~= attempt then
        return {RESUMED}
    end
    give_back(h)
    return {RELEASED}
end

local reply = release()
finish(0)
return reply
