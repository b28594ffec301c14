--include head.lua
-- Take the lock from its holder. ARGV[1]: proposed fence, 1 for at once, 1 if another node knows the lock, how often the client
-- had dialled when it asked; who does it. ARGV[2]: the key of the client's own mark, see vote.lua: it must not take a newer lock
-- of its own client. {verdict, last fence}
--
-- A node without a record says so first. If another node has one, the break is recorded here as well: this node's vote for the
-- holder may still be on its way, and the holder may reach this node and not those that had its vote.
local proposal, at_once, known, dialled, who = struct.unpack('>dddds', ARGV[1])
if dialled < tonumber(call('GET', ARGV[2]) or 0) then
    return {STALE, 0}
elseif not stored and known == 0 then
    return {LOST, 0}
end
last = proposal > last and proposal or last + 1
broken, broken_at, by = last, now, who
if live and (at_once == 1 or attempt == '') then
    owner, attempt, ends, live = '', '', 0, false
end
if not live then
    notify_first()
end
save()
return {live and BUSY or RELEASED, last}
