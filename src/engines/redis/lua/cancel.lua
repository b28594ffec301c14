--define SERVER ARGV[2]
--include head.lua
--include machine.lua
-- Leave the queue; a grant that arrived meanwhile goes back too. ARGV: 0, owner and attempt.
local _, owner, attempt = struct.unpack('>dss', ARGV[1])

local function cancel()
    local h, w = find_holder(owner), find_waiter(owner)
    if h and h[ATTEMPT] == attempt then
        drop_holder(h)
        serve_queue()
    elseif w and w[ATTEMPT] == attempt then
        drop_waiter(w)
        serve_queue()
    end
end

settle()
cancel()
finish(0)
return {RELEASED}
