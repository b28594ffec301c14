-- One command on one cell: the same machine as src/state/cell.c; a test compares the two.
--
-- The cell is one string at KEYS[1]: a head of fixed length, numbers first, and the value behind it.
--
--   mark      "dibC"
--   version   the last one given out
--   floor     two halves of 32 bits: a fence may have more bits than a number here
--   written   when it was last changed
--   expires   when it ends; 0: never
--   number    a counter's, in two halves for the same reason
--   kind      a sum: 1 for a counter, 2 for a cell that is empty (kept for its floor)
--   stamp     of the command that changed it last, 40 bytes
--
-- What a request was answered stands at KEYS[1]:r:REQUEST. Handles that wait for a change have their marks in the set
-- KEYS[1]:w, see await.lua: each of them is told once.
-- Nothing that has ended stays: the server drops it by itself. A cell with a floor is kept until the
-- clock is a day past it, so that no older fence can come back.
--
-- ARGV: packed numbers, stamp, request, value. The reply is one string: numbers, then the value if it
-- is asked for or stands in the way. A READ with a number other than 0 is a listing's: it gets so many bytes
-- of the value, and its whole size as the number.
--define HEAD '>I4dI4I4ddI4I4I4c40' HEAD_SIZE 88 NAME 0x64696243
--define ASKED '>I4ddI4I4I4I4I4I4I4dI4' REPLY '>I4dI4I4I4I4dd'
--define READ 0 SWAP 1 DELETE 2 PASS 3 ASSIGN 4 ADD 5 TAKE 6
--define DONE 0 ALREADY 1 ABSENT 2 CONFLICT 3 FENCED 4 TOO_FEW 5 OVERFLOW 6 KIND 7
--define NO_STAMP string.rep('\0',40) DAY 86400000000 WORD 4294967296 HALF 2147483648 FOREVER 4503599627370496

local time = redis.call('TIME')
local call, now, key = redis.call, time[1] * 1000000 + time[2], KEYS[1]
local op, wanted, keep, fence_hi, fence_lo, up_hi, up_lo, minus, by_hi, by_lo, request_keep, notify =
    struct.unpack(ASKED, ARGV[1])
local stored = call('GETRANGE', key, 0, HEAD_SIZE - 1)
local mark, version, floor_hi, floor_lo, written, expires, hi, lo, kind, stamp =
    NAME, 0, 0, 0, 0, 0, 0, 0, 0, NO_STAMP
local found = #stored > 0
if found and #stored == HEAD_SIZE then
    mark, version, floor_hi, floor_lo, written, expires, hi, lo, kind, stamp =
        struct.unpack(HEAD, stored)
elseif found then
    mark = 0
end
if mark ~= NAME then
    return redis.error_reply('NOTOURS the key holds something that is no cell')
end
local there = found and kind < 2 and (expires == 0 or expires > now)

local function below(a_hi, a_lo, b_hi, b_lo)
    return a_hi < b_hi or a_hi == b_hi and a_lo < b_lo
end

local function say(verdict, number_hi, number_lo)
    local shown = ''
    if verdict == CONFLICT or verdict == DONE and (op == READ or op == PASS) then
        shown = call('GETRANGE', key, HEAD_SIZE, -1)
    end
    if not there then
        number_hi, number_lo = number_hi or 0, number_lo or 0
    end
    return struct.pack(REPLY, verdict, there and version or 0, floor_hi, floor_lo, number_hi or hi,
        number_lo or lo, now - written, there and expires > 0 and expires - now or 0) .. shown
end

-- ---- Writing ----

-- In milliseconds from now; nil: it stays.
local function kept()
    local till = expires
    if kind < 2 and expires == 0 then
        return nil
    elseif floor_hi > 0 or floor_lo > 0 then
        till = math.max(till, floor_hi * WORD + floor_lo + DAY, written + DAY) + 1
    end
    till = math.max(till, version) - now
    return till < FOREVER and math.max(math.ceil(till / 1000), 0) + 1 or nil
end

local function head()
    return struct.pack(HEAD, NAME, version, floor_hi, floor_lo, written, expires, hi, lo, kind, stamp)
end

local function put(value)
    local ms = kept()
    if ms then
        call('SET', key, head() .. value, 'PX', string.format('%.0f', ms))
    else
        call('SET', key, head() .. value)
    end
end

-- The value is left as it is.
local function put_head()
    local ms = kept()
    call('SETRANGE', key, 0, head())
    if ms then
        call('PEXPIRE', key, string.format('%.0f', ms))
    else
        call('PERSIST', key)
    end
end

local function sign()
    version = version < now and now or version + 1
    written, stamp = now, ARGV[2]
end

local function wake()
    local marks = notify == 1 and call('SMEMBERS', key .. ':w') or {}
    for _, mark in ipairs(marks) do
        local handle, text = string.match(mark, '^(%S+) (.*)$')
        redis.pcall('PUBLISH', string.match(key, '^(.-):?{') .. ':wake:' .. handle, text)
    end
    if #marks > 0 then
        call('DEL', key .. ':w')
    end
end

local function ends_after(span)
    return span > 0 and span < FOREVER and now + span or 0
end

-- ---- Values ----

-- What stands in the way; DONE: nothing.
local function obstacle()
    if (fence_hi > 0 or fence_lo > 0) and below(fence_hi, fence_lo, floor_hi, floor_lo) then
        return FENCED
    elseif not there then
        return wanted == 0 and op == SWAP and DONE or ABSENT
    end
    return wanted >= 0 and wanted ~= version and CONFLICT or DONE
end

-- What came with the fence, or the fence itself.
local function raise_floor()
    if up_hi == 0 and up_lo == 0 then
        up_hi, up_lo = fence_hi, fence_lo
    end
    if (fence_hi > 0 or fence_lo > 0) and below(floor_hi, floor_lo, up_hi, up_lo) then
        floor_hi, floor_lo, written = up_hi, up_lo, now
        return true
    end
end

local function swap()
    if there and stamp == ARGV[2] then
        return say(DONE)
    end
    local verdict = obstacle()
    if verdict ~= DONE then
        return say(verdict)
    end
    sign()
    raise_floor()
    there, kind, hi, lo, expires = true, 0, 0, 0, ends_after(keep)
    put(ARGV[4])
    wake()
    return say(DONE)
end

local function make_empty()
    there, kind, expires, hi, lo = false, 2, 0, 0, 0
end

-- No higher floor and no lower version can come of it.
local function may_drop()
    local floor = floor_hi * WORD + floor_lo
    return now > version and (floor == 0 or now - DAY > floor and now - DAY > written)
end

local function delete()
    if kind >= 2 and stamp == ARGV[2] then
        return say(DONE)
    end
    local verdict = obstacle()
    if verdict ~= DONE then
        return say(verdict)
    end
    make_empty()
    raise_floor()
    if may_drop() then
        call('DEL', key)
    else
        sign()
        put('')
    end
    wake()
    return say(DONE)
end

local function pass()
    if below(fence_hi, fence_lo, floor_hi, floor_lo) then
        return say(FENCED)
    end
    if raise_floor() then
        if there then
            put_head()
        else
            make_empty()
            put('')
        end
    end
    return say(there and DONE or ABSENT)
end

-- ---- Counters ----

-- The sum, or why there is none.
local function sum()
    if op == ASSIGN then
        return DONE, by_hi, by_lo
    elseif op == TAKE and not there then
        return ABSENT
    end
    local had_hi, had_lo = there and hi or 0, there and lo or 0
    if minus == 1 and below(had_hi, had_lo, by_hi, by_lo) then
        return TOO_FEW
    end
    local new_hi = minus == 1 and had_hi - by_hi or had_hi + by_hi
    local new_lo = minus == 1 and had_lo - by_lo or had_lo + by_lo
    if new_lo < 0 then
        new_hi, new_lo = new_hi - 1, new_lo + WORD
    elseif new_lo >= WORD then
        new_hi, new_lo = new_hi + 1, new_lo - WORD
    end
    if new_hi >= HALF then
        return OVERFLOW
    end
    return DONE, new_hi, new_lo
end

local function answered()
    local answer = ARGV[3] ~= '' and call('GET', key .. ':r:' .. ARGV[3])
    if answer then
        local answered_hi, answered_lo, till = struct.unpack('>I4I4d', answer)
        if till == 0 or till > now then
            return answered_hi, answered_lo
        end
    end
end

local function remember()
    local till = ends_after(request_keep)
    local answer = struct.pack('>I4I4d', hi, lo, till)
    if till > 0 then
        call('SET', key .. ':r:' .. ARGV[3], answer, 'PX',
            string.format('%.0f', math.ceil(request_keep / 1000) + 1))
    else
        call('SET', key .. ':r:' .. ARGV[3], answer)
    end
end

local function count()
    local answered_hi, answered_lo = answered()
    if answered_hi then
        return say(there and stamp == ARGV[2] and DONE or ALREADY, answered_hi, answered_lo)
    elseif there and stamp == ARGV[2] then
        return say(DONE)
    end
    local verdict, new_hi, new_lo = sum()
    if verdict ~= DONE then
        return say(verdict)
    end
    sign()
    if not there or keep > 0 then
        expires = ends_after(keep)
    end
    there, kind, hi, lo = true, 1, new_hi, new_lo
    put('')
    if ARGV[3] ~= '' then
        remember()
    end
    wake()
    return say(DONE)
end

-- ---- Commands ----

if op == READ and there and kind == 0 and by_lo > 0 then
    return struct.pack(REPLY, DONE, version, floor_hi, floor_lo, 0, call('STRLEN', key) - HEAD_SIZE,
        now - written, expires > 0 and expires - now or 0) ..
        call('GETRANGE', key, HEAD_SIZE, HEAD_SIZE + by_lo - 1)
elseif op == READ then
    return say(there and DONE or ABSENT)
elseif there and (kind == 1) ~= (op >= ASSIGN) then
    return say(KIND)
elseif op == SWAP then
    return swap()
elseif op == DELETE then
    return delete()
elseif op == PASS then
    return pass()
end
return count()
