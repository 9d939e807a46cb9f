# Copyright 2026 The hyper_parallel authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""`scripts/train.py` with MindFormers' two hard-coded down-casts in float32, for comparisons to 1e-4."""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

if __name__ == "__main__":
    import mindspore

    mindspore.set_device("CPU")
    import hyper_parallel  # noqa: F401, before MindFormers, whose operators it supplies on a CPU
    import train
    from tests.models.mindformers_qwen3 import float32_casts

    with float32_casts():
        sys.exit(train.main())
