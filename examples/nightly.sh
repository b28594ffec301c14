#!/bin/sh
# A job that starts on several machines at the same minute and must run once: whoever comes second leaves at
# once, content (-E 0), and a lock given back early stays taken for a while (--min-hold), so that a machine whose
# clock is a little late does not run it again. Usage: nightly.sh COMMAND...
set -eu

exec dibs run --no-wait -E 0 --min-hold "${MIN_HOLD:-30s}" nightly -- "$@"
