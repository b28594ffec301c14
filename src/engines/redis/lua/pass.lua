-- The other common case: from one who held it whole to one who wants all of it, with nobody dead at
-- the head of the queue. The same as the machine does, without the machine.
if mine and mark == WAITED_FOR and not quiet then
    local waiters, last_place, place = struct.unpack(QUEUE, stored)
    local first = string.sub(stored, 13, 20)
    local found = call('HMGET', key .. ':q', first, struct.pack('>d', place + 1))
    local head, second = found[1], found[2]
    if head and (second or waiters == 1) then
        local _, _, alive, _, hold, owner, attempt, _, _, weight = struct.unpack(ENTRY, head)
        local _, next_alive = 0, 0
        if second then
            _, _, next_alive = struct.unpack('>ddd', second)
        end
        if alive > now and weight == capacity and (not second or next_alive > now) then
            local fence = last_fence < clock and clock or last_fence + 1
            call('HDEL', key .. ':q', first, 'o' .. owner)
            call('SETRANGE', key, '0', struct.pack(QUEUE_HEAD, waiters - 1, last_place, place + 1,
                next_alive, second and WAITED_FOR or HELD, now, alive, hold, till, capacity, fence)
                .. string.sub(head, 41))
            local number = string.format('%.0f', fence)
            redis.pcall('PUBLISH', string.match(key, '^(.-):?{') .. ':wake:'
                .. string.match(attempt, '^[^-.]*'), attempt .. ' ' .. number .. ' ' .. number)
            return 0
        end
    end
end
