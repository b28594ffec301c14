# Reads a number from a file, adds one, writes it back: with a gap in between, so that two at once lose updates.
read -r n <"$1"
i=0
while [ "$i" -lt 200 ]; do i=$((i + 1)); done
echo $((n + 1)) >"$1"
