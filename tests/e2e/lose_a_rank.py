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
"""Two ranks of a sharded model, of which the second is killed, or stalls, before it joins the MLP's reduction."""
import os
import signal
import sys
import time

import mindspore

import hyper_parallel as hp
from tests.models.fused_decoder import RIGHT_LAYOUT, fused_decoder, token_ids

mindspore.set_device("CPU")
mindspore.communication.init()
rank = mindspore.communication.get_rank()
cell = fused_decoder()
hp.auto_tp(cell, hp.init_device_mesh("npu", (2,), mesh_dim_names=("tp",)), overrides=[RIGHT_LAYOUT])
cell(token_ids()).asnumpy()
print("one forward", flush=True)


def leave(module, args):
    """Before the MLP's second linear."""
    if rank == 1 and sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        time.sleep(120)


cell.mlp.fc2.register_forward_pre_hook(leave)
begin = time.time()
try:
    cell(token_ids()).asnumpy()
finally:
    print(f"ended after {time.time() - begin:.0f} s", flush=True)
