#!/usr/bin/env bash
# The tests: unit tests in one process, then one msrun job for 2 ranks and one for 4, with the coverage of all of them.
#   --full   also the slow tests and 8 ranks
# Creates the virtual environment first, as quickstart.sh does.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

worlds="2 4"
select=(-m "not slow")
for argument in "$@"; do
    case "$argument" in
        --full) worlds="2 4 8"; select=() ;;
        *) die "unknown argument $argument; only --full is known" ;;
    esac
done

make_environment
export PATH="$VENV/bin:$PATH"
cd "$ROOT"
coverage erase

status=0
summary=""
# Runs one tier, shows it, and keeps pytest's closing line for the end.
tier() {
    local name="$1" log code=0
    shift
    echo "== $name"
    log="$(mktemp)"
    "$@" 2>&1 | tee "$log" || code=1
    summary="$summary$(printf '%-14s %s' "$name" "$(grep -E '[0-9]+ (passed|failed|error|skipped)' "$log" | tail -n 1)")"$'\n'
    rm -f "$log"
    [ "$code" = 0 ] || status=1
}

tier "unit" coverage run -m pytest tests/unit "${select[@]}"
for world in $worlds; do
    tier "world $world" coverage run tests/distributed/launch.py --world "$world" "${select[@]}"
done

coverage combine --quiet
coverage report --fail-under=95 || status=1
printf '\n%s' "$summary"
exit "$status"
