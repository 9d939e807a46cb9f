#!/usr/bin/env bash
# From nothing but Python 3.10-3.12 to a Qwen3 trained on one process and on two, with both loss curves side by side.
# Creates a virtual environment in .venv the first time; a second run only trains. Arguments go to both trainings.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_environment
export PATH="$VENV/bin:$PATH"
cd "$ROOT"
out=output/quickstart
rm -f "$out"/tp?.json   # a failed run must not be compared with an older one
config=configs/qwen3_tiny_auto_tp.yaml

echo "== 1 of 2: one process"
python scripts/train.py --config "$config" --set parallel_config.model_parallel=1 \
    --output "$out" --record "$out/tp1.json" "$@"
echo "== 2 of 2: two processes, tensor parallel"
status=0
bash scripts/msrun_train.sh --config "$config" --workers 2 --log-dir "$out/log_tp2" -- \
    --output "$out" --record "$out/tp2.json" --reference "$out/tp1.json" "$@" || status=1
echo
python scripts/compare_runs.py "$out/tp1.json" "$out/tp2.json" --plot "$out/loss.png" || status=1
exit "$status"
