#!/usr/bin/env bash
usage() {
    cat <<'TEXT'
Usage: msrun_train.sh --config FILE [options] [-- arguments for the training script]

Starts scripts/train.py under msrun, on one machine or on several. The device follows context.device_target of the
configuration: Ascend communicates by HCCL, CPU by MindSpore's mccl.

  --config FILE       training configuration (YAML)
  --script FILE       what to start (default scripts/train.py; scripts/train_graph.py for MindFormers' graph mode)
  --workers N         processes in all (default: model_parallel x data_parallel of the configuration)
  --nodes N           machines (default 1); each runs N / nodes processes and starts this script by itself
  --node-rank R       number of this machine, 0 to nodes - 1 (default 0)
  --master-addr A     address of machine 0 (default 127.0.0.1)
  --master-port P     a free port on machine 0 (default: any free one; 8118 with several machines)
  --log-dir DIR       logs of the processes (default output/msrun_log)
  --timeout S         how many seconds the processes wait for each other at start (default 300)

One machine:    msrun_train.sh --config configs/qwen3_tiny_auto_tp.yaml
Two machines, the same command on both but for --node-rank:
                msrun_train.sh --config FILE --workers 16 --nodes 2 --master-addr 10.0.0.1 --node-rank 0
                msrun_train.sh --config FILE --workers 16 --nodes 2 --master-addr 10.0.0.1 --node-rank 1

The output of the first process of this machine is shown. The exit code is not 0 when any process of it fails.
TEXT
}
set -euo pipefail

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

config="" script="" workers="" nodes=1 node_rank=0 master_addr=127.0.0.1 master_port="" log_dir=output/msrun_log timeout=300
while [ $# -gt 0 ]; do
    case "$1" in
        -h | --help) usage; exit 0 ;;
        --) shift; break ;;
        --config | --script | --workers | --nodes | --node-rank | --master-addr | --master-port | --log-dir | --timeout)
            [ $# -ge 2 ] || { usage >&2; die "$1 needs a value"; }
            name="${1#--}"
            printf -v "${name//-/_}" '%s' "$2"
            shift 2 ;;
        *) usage >&2; die "unknown argument $1 (arguments for the training script go after --)" ;;
    esac
done
[ -n "$config" ] || { usage >&2; die "--config is missing"; }
command -v msrun > /dev/null || die "msrun is not on PATH: activate the environment that MindSpore is installed in"
train="${script:-"$(dirname "${BASH_SOURCE[0]}")/train.py"}"
[ -f "$train" ] || die "there is no script $train"

# This also refuses what the script would refuse, before any process is started.
settings="$(MS_WORKER_NUM="$workers" RANK_ID=0 python "$train" --config "$config" "$@" --describe)" || exit 1
read -r device described <<< "$settings"
workers="${workers:-$described}"
for number in "$workers" "$nodes" "$node_rank" "$timeout" "${master_port:-1}"; do
    [[ "$number" =~ ^[0-9]+$ ]] || die "$number is not a whole number"
done
[ "$nodes" -ge 1 ] && [ "$workers" -ge 1 ] && [ $((workers % nodes)) = 0 ] ||
    die "$workers processes cannot be divided among $nodes machines"
[ "$node_rank" -lt "$nodes" ] || die "--node-rank $node_rank: the machines are numbered 0 to $((nodes - 1))"
local_workers=$((workers / nodes))
if [ -z "$master_port" ]; then
    master_port=8118
    [ "$nodes" -gt 1 ] || master_port="$(python -c 'import socket
probe = socket.socket()
probe.bind(("127.0.0.1", 0))
print(probe.getsockname()[1])')"
fi

if [ "$device" = CPU ]; then
    # Each process would otherwise start a thread for every core, and all of them would wait for one another.
    threads=$(($(nproc) / local_workers))
    [ "$threads" -ge 1 ] || threads=1
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$threads}"
    export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-$threads}"
fi
export PYTHONUNBUFFERED=1

mkdir -p "$log_dir"
rm -f "$log_dir"/worker_*.log "$log_dir"/scheduler.log
first_log="$log_dir/worker_$((node_rank * local_workers)).log"
msrun --worker_num="$workers" --local_worker_num="$local_workers" --node_rank="$node_rank" \
    --master_addr="$master_addr" --master_port="$master_port" --cluster_time_out="$timeout" \
    --log_dir="$log_dir" --join=True --tail_worker_log="$workers" \
    "$train" --config "$config" "$@" > "$log_dir/msrun.log" 2>&1 &
job=$!
trap 'kill -INT "$job" 2>/dev/null; wait "$job"; exit 130' INT TERM
# -F: the file is not there yet. --pid: stop with msrun, after the last line.
tail --pid="$job" -n +1 -F "$first_log" 2>/dev/null || true
if wait "$job"; then
    exit 0
fi

echo >&2
echo "error: the job failed; logs in $log_dir" >&2
# A rank that reports an error is the cause; ranks that msrun killed after it report none.
errors='^error: |^Traceback|\[CRITICAL\]|\[ERROR\]'
failed="$(grep -lE "$errors" "$log_dir"/worker_*.log 2>/dev/null | head -n 1)" || true
log="${failed:-"$log_dir/msrun.log"}"
if [ "$log" != "$first_log" ]; then   # that one has been shown
    echo "-- last lines of $log" >&2
    tail -n 25 "$log" >&2
fi
exit 1
