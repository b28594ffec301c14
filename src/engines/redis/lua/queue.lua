-- The other common case: a lock that another holds whole and in time, and somebody who wants all
-- of it waits in the queue for it, behind a head that is alive. The same as the machine does, without
-- the machine.
if (mark == WAITED_FOR or mark == HELD) and ends > now and kind == 1 and capacity == wanted
    and window > 0 and till > now + lease + DAY then
    local owner = struct.unpack('s', ARGV[2])
    local waiters, last_place, _, head_ends = struct.unpack(QUEUE, stored)
    if struct.unpack('s', stored, WHO_AT) ~= owner and (mark == HELD or head_ends > now) then
        local queue, alive = key .. ':q', window
        if alive > lease then
            alive = lease
        end
        last_place = last_place + 1
        local entry = struct.pack('>ddddd', last_place, now, now + alive, alive, hold) .. ARGV[2]
        local place = string.sub(entry, 1, 8)
        if call('HSETNX', queue, 'o' .. owner, place) == 1 then
            call('HSET', queue, place, entry)
            local in_way = struct.pack('>d', ends - now) .. string.sub(stored, FENCE_AT)
            if mark == WAITED_FOR then
                call('SETRANGE', key, '0', struct.pack('>I4d', waiters + 1, last_place))
                return in_way
            end
            call('SETRANGE', key, '0',
                struct.pack('>I4dddI4', 1, last_place, last_place, now + alive, WAITED_FOR))
            call('PEXPIRE', queue, math.ceil((till - now) / 1000))
            return {1, 0, 0, ends - now, 0, in_way}
        end
    end
end
