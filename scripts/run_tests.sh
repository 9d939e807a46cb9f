#!/usr/bin/env bash
# The tests: unit tests in one process, then one msrun job of 2 ranks and one of 4, with the coverage of all of them.
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
install_judge
# transformers, which MindFormers imports, would load torch with it
export USE_TORCH=0
export PATH="$VENV/bin:$PATH"
cd "$ROOT"
# The queues between MindSpore's threads wait by spinning, which costs most of the time of several ranks on few cores.
export MS_DEV_LAUNCH_BLOCKING=1 GLOG_v=3
log="$(mktemp -d)"
trap 'rm -rf "$log"' EXIT
status=0

# Runs one tier, shows it, and keeps what it printed for the count at the end.
tier() {
    local name="$1"
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$log/$name" || { status=1; echo "== $name failed"; }
}

# pytest's closing line of each tier; of several ranks, the launcher's line for all of them, which is the last.
closing_lines() {
    local file
    for file in "$log"/*; do
        grep -E ' in [0-9.]+s' "$file" | tail -n 1
    done
}

# The number in front of a word of the closing lines, summed over the tiers.
count() {
    closing_lines | grep -oE "[0-9]+ $1" | awk '{ sum += $1 } END { print sum + 0 }' || true
}

coverage erase
tier unit coverage run -m pytest tests/unit tests/plan_judge tests/graph "${select[@]}"
for world in $worlds; do
    tier "$world-ranks" coverage run tests/distributed/launch.py --world "$world" "${select[@]}"
done
tier end-to-end coverage run -m pytest tests/e2e "${select[@]}"
echo "== coverage"
coverage combine --quiet
coverage report --fail-under=95 || status=1

echo
closing_lines || true
[ "$(count passed)" -gt 0 ] || { echo "no test has run"; status=1; }
echo "tests: $(count passed) passed, $(($(count failed) + $(count error))) failed, $(count skipped) skipped"
exit "$status"
