--include head.lua
-- Take the lock from its holder. ARGV[1]: proposed fence, 1 for at once; who does it. {verdict, last fence}
local proposal, at_once, who = struct.unpack('>dds', ARGV[1])
if not stored then
    return {LOST, 0}
end
last = proposal > last and proposal or last + 1
broken, broken_at, by = last, now, who
if live and (at_once == 1 or attempt == '') then
    owner, attempt, ends, freed, live = '', '', 0, now, false
end
if not live then
    tell_free(string.format('%.0f', last))
end
save()
return {live and BUSY or RELEASED, last}
