-- What the marker of this server says: see mark.lua. The ceiling of fences is raised here, half a lease before it
-- is reached, in the same step as the grant that may need it.
--define MARKER_KEY (KEYS[3]or(string.sub(key,1,string.find(key,'{',1,true)-1)..'server'))
local marker = call('GET', MARKER_KEY)
if not marker or string.sub(marker, 57) ~= SERVER then
    quiet = -1
else
    local opens, base, ceiling
    opens, base, ceiling, longest = struct.unpack('>dddd', marker)
    clock = now < base and base or now
    quiet = opens > now and opens - now
    local top = last_fence > clock and last_fence or clock
    if not quiet and top + longest / 2 > ceiling then
        call('SETRANGE', MARKER_KEY, '16',
            struct.pack('>d', top + longest))
    end
end
