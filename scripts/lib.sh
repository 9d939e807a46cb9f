# Sourced by quickstart.sh and run_tests.sh: a virtual environment that holds the package and all it needs.
#   HYPER_PARALLEL_VENV     where it lies (default: .venv in the checkout)
#   HYPER_PARALLEL_PYTHON   the Python to make it with (default: the first of python3.11, 3.12, 3.10 that works)

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${HYPER_PARALLEL_VENV:-$ROOT/.venv}"
NEEDED_GB=6   # 4 GB when installed; the rest is the downloads while pip works

die() {
    printf '\nerror: %s\n' "$*" >&2
    exit 1
}

# Prints the first Python of a supported version that can make virtual environments.
find_python() {
    local candidate version seen=""
    for candidate in ${HYPER_PARALLEL_PYTHON:-python3.11 python3.12 python3.10 python3}; do
        version="$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || continue
        case "$version" in
            3.10 | 3.11 | 3.12) ;;
            *) seen="$seen $candidate is $version;"; continue ;;
        esac
        if ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            seen="$seen $candidate has no venv module (Debian, Ubuntu: install python$version-venv);"
            continue
        fi
        echo "$candidate"
        return
    done
    die "Python 3.10, 3.11 or 3.12 with the venv module is needed. Found:${seen:- none.}
Install one, or name one: HYPER_PARALLEL_PYTHON=/path/to/python3.11"
}

# The stamp changes when what has to be installed changes, so that a second run installs nothing.
stamp() {
    { echo "$ROOT"; cat "$ROOT/setup.py"; "$VENV/bin/python" --version; } 2>&1 | cksum
}

make_environment() {
    local python parent free_kb
    if [ -e "$VENV" ] && [ ! -e "$VENV/pyvenv.cfg" ]; then
        [ -d "$VENV" ] && [ -z "$(ls -A "$VENV")" ] ||
            die "$VENV exists and is not a virtual environment; name another place with HYPER_PARALLEL_VENV"
    fi
    if [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/.installed" 2>/dev/null)" = "$(stamp)" ]; then
        return
    fi

    python="$(find_python)"
    parent="$(dirname "$VENV")"
    mkdir -p "$parent" || die "cannot create $parent"
    free_kb="$(df -Pk "$parent" | awk 'NR == 2 { print $4 }')"
    if [ ! -e "$VENV/.installed" ] && [ "${free_kb:-0}" -lt $((NEEDED_GB * 1024 * 1024)) ]; then
        die "$parent has $((${free_kb:-0} / 1024 / 1024)) GB free; about $NEEDED_GB GB are needed.
Free some, or choose another disk with HYPER_PARALLEL_VENV"
    fi

    # A broken or half-made environment, such as one whose Python has been removed, is made anew.
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        echo "creating $VENV with $("$python" --version)"
        "$python" -m venv --clear "$VENV" || die "$python could not create $VENV"
    fi
    echo "installing MindSpore, MindFormers and this package into $VENV (about 2 minutes the first time)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --editable "$ROOT[mindformers,quickstart,test]" ||
        die "pip failed; its own words are above. If they speak of connections, time-outs or 'no matching distribution',
this machine does not reach a package index: check the network, a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL).
If they speak of 'No space left on device', free about $NEEDED_GB GB. Then run this again: it goes on where it stopped."
    stamp > "$VENV/.installed"
}

# The tests that judge gradients follow the forwards with torch. Only a CPU build is taken: others bring gigabytes.
install_judge() {
    local wanted
    if "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
        return
    fi
    wanted="$("$VENV/bin/python" -m pip install --disable-pip-version-check --dry-run "$ROOT[judge]" 2>/dev/null)" ||
        wanted=""
    case "$(printf '%s\n' "$wanted" | grep 'Would install')" in
        *nvidia* | *cuda* | "")
            echo "torch is not installed: this index has no CPU build of it; the tests that need it will be skipped" ;;
        *)
            echo "installing torch for the tests that judge gradients"
            "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$ROOT[judge]" ||
                echo "torch could not be installed; the tests that need it will be skipped" ;;
    esac
}
