-- Is that lock held or waited for? By the mark of its record; see head.lua.
local function is_busy(key)
    local mark = redis.pcall('GETRANGE', key, 28, 31)
    return mark == 'dibH' or mark == 'dibQ' or mark == 'dibX'
end
--include fill.lua
