-- Is a vote out? By the end of its lease in the record; see head.lua.
local function is_busy(key)
    local stored = redis.pcall('GETRANGE', key, 0, 43)
    return type(stored) == 'string' and #stored == 44 and string.sub(stored, 1, 4) == 'redl'
        and struct.unpack('>d', stored, 37) > 0
end
--include ../../redis/lua/fill.lua
