-- Somebody waits until the cell has another version than ARGV[1], and reads the stream right behind
-- this. ARGV: the version, how long the stream is to be kept, in milliseconds. If the version is
-- another one already, the stream says so at once.
local call, key = redis.call, KEYS[1]
local stored, stream = call('GETRANGE', key, 4, 11), KEYS[1] .. ':s'
local known = ARGV[1] + 0
local version = #stored == 8 and struct.unpack('>d', stored) or 0
if call('EXISTS', stream) == 0 then
    call('XADD', stream, 'MAXLEN', 1, '0-1', 'v', '')
end
if version ~= known then
    redis.pcall('XADD', stream, 'MAXLEN', 1, string.format('%.0f-1', math.max(version, known + 1)),
        'v', '')
end
call('PEXPIRE', stream, ARGV[2])
return 0
