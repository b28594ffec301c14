--define SERVER ARGV[3]
--include head.lua
--include machine.lua
-- Take it from the holders. ARGV: by whom, 1 for at once.

-- One that was given back belongs to nobody: nobody is to be told.
local function notify_broken(h)
    if h[EXTRA] == 0 then
        publish(h, h[ATTEMPT])
    end
end

local function drop_all_holders()
    local h = first_by(':x')
    while h do
        notify_broken(h)
        drop_holder(h)
        h = first_by(':x')
    end
    serve_queue()
end

-- Those given back already belong to nobody and need not be asked.
local function drop_released()
    local h = first_by(':f')
    while h and h[EXTRA] == 1 do
        drop_holder(h)
        h = first_by(':f')
    end
    serve_queue()
end

local function ask_holders(fence)
    local h = first_by(':f')
    if not h or h[NUMBER] >= fence then
        return {RELEASED, fence}
    end
    if solo then
        notify_broken(solo)
    else
        for _, field in ipairs(call('ZRANGEBYSCORE', key .. ':f', '-inf', '(' .. text(fence))) do
            local packed = call('HGET', key .. ':h', field)
            if packed then
                notify_broken(unpack_entry(packed))
            end
        end
    end
    return {BUSY, fence, 0, until_expiry()}
end

if not stored then
    return {LOST}
end
settle()
local fence = next_fence()
lock[BROKEN_FENCE], lock[BROKEN_AT], lock[BROKEN_BY], changed = fence, now, ARGV[1], true
if ARGV[2] == '1' then
    drop_all_holders()
else
    drop_released()
end
local reply = ask_holders(fence)
if lock[HOLDERS] == 0 and lock[WAITERS] == 0 then
    lock[CAPACITY] = 0
end
finish(0)
return reply
