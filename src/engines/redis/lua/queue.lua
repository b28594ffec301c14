-- The other common case: a lock that another holds whole and in time, and somebody who wants all
-- of it stands in line for it, behind a head that is alive. The same as the machine does, without
-- the machine.
local owner = struct.unpack('s', ARGV[1])
if holders == 1 and h_ends > now and ARGV[6] == '1' and capacity == wanted and ARGV[5] ~= '0'
    and till > now + lease + DAY and struct.unpack('s', stored, at) ~= owner then
    local first = waiters > 0 and redis.call('ZRANGE', key .. ':l', 0, 0)[1]
    local alive = waiters == 0
    if first then
        local entries = redis.call('HMGET', key .. ':q', first, owner)
        alive = entries[1] and not entries[2] and select(3, struct.unpack('>ddd', entries[1])) > now
    end
    if alive then
        local window = ARGV[5] + 0
        if window > lease then
            window = lease
        end
        last_place = last_place + 1
        redis.call('HSET', key .. ':q', owner,
            struct.pack('>ddddd', last_place, now, now + window, window, ARGV[3]) .. ARGV[1])
        redis.call('ZADD', key .. ':l', last_place, owner)
        redis.call('SET', key, struct.pack(RECORD, mark, capacity, used, 1, waiters + 1,
            last_fence, last_place, broken_fence, broken_at, till, broken_by, h_number, h_since,
            h_ends, h_extra, h_min_hold) .. string.sub(stored, at), 'KEEPTTL')
        if waiters == 0 then
            local left = math.ceil((till - now) / 1000)
            redis.call('PEXPIRE', key .. ':q', left)
            redis.call('PEXPIRE', key .. ':l', left)
            return {1, 0, 0, h_ends - now}
        end
        return {1}
    end
end
