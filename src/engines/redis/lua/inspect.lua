--define SERVER ARGV[3]
--include head.lua
--include machine.lua
-- Look at everything. ARGV: 1 to let time pass first, 1 to see the waiters too. Gives {} for no
-- lock, else {time, record, holders, waiters}, in no order. A lock that is idle leaves the set of
-- busy ones even if its record is gone, or was not changed by a script that knows the set.
if stored and ARGV[1] == '1' then
    settle()
    finish(0)
end
if lock[HOLDERS] + lock[WAITERS] == 0 then
    call('SREM', BUSY_SET, key)
end
if not stored then
    return {}
end

local function entries(name, counted)
    local out = {}
    if counted > 0 then
        for _, value in ipairs(call('HVALS', key .. name)) do
            if #value > 8 then -- else a place
                out[#out + 1] = unpack_entry(value)
            end
        end
    end
    return out
end

local all = ARGV[2] == '1' and entries(':q', lock[WAITERS]) or {}
return {now, lock, solo and {solo} or entries(':h', lock[HOLDERS]), all}
