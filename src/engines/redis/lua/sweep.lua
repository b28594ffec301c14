-- A record whose lock was never given back ends by itself, and its key stays in the set of busy locks
-- until somebody lists them. So that nobody has to, one new record in eight looks at a few members: two
-- for each that is made, which is more than can be left behind.
if now % 8 == 0 then
    local some = call('SRANDMEMBER', BUSY_SET, 16)
    if #some > 0 and call('EXISTS', unpack(some)) < #some then
        for _, member in ipairs(some) do
            if member ~= '' and call('EXISTS', member) == 0 then
                call('SREM', BUSY_SET, member)
            end
        end
    end
end
