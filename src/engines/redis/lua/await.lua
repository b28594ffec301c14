-- A handle waits until the cell has another version than ARGV[1]. ARGV: the version, how long the mark is kept, in
-- milliseconds, and the mark: the handle, a blank, and what it is told. 1: it has another version already.
local call, key, marks = redis.call, KEYS[1], KEYS[1] .. ':w'
local stored = call('GETRANGE', key, 4, 11)
local version = #stored == 8 and struct.unpack('>d', stored) or 0
if version ~= ARGV[1] + 0 then
    return 1
end
call('SADD', marks, ARGV[3])
call('PEXPIRE', marks, ARGV[2])
return 0
