#!/usr/bin/env bash
# Everything: the slow tests, 8 ranks, and the main job end to end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/run_tests.sh --full
bash scripts/quickstart.sh
