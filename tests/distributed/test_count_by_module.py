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
"""Collectives of an applied plan are counted under the module whose edge they are, and under the mesh's axis.

    python tests/distributed/launch.py --world 2 tests/distributed/test_count_by_module.py
"""
import mindspore
import numpy as np
import pytest
from mindspore import Tensor

import hyper_parallel as hp
from hyper_parallel.distributed.verify import run
from tests.models.decoder import Decoder, DecoderConfig, randomize

WORLD = mindspore.communication.get_group_size()
pytestmark = pytest.mark.skipif(WORLD not in (2, 4), reason="runs on 2 or 4 ranks")


def test_each_layer_counts_its_own():
    """An all-reduce at exit and entry of attention and of the MLP; norms on local heads sum their gradients."""
    cell = randomize(Decoder(DecoderConfig(num_attention_heads=8, num_key_value_heads=4, head_dim=4,
                                           intermediate_size=24)))
    hp.auto_tp(cell, hp.init_device_mesh("npu", (WORLD,), mesh_dim_names=("tp",)))
    ids = Tensor(np.random.default_rng(7).integers(0, 32, (2, 8)).astype(np.int32))
    with hp.count_collectives() as record:
        run(cell, (ids,))
    for layer in range(2):
        for part in ("self_attn", "mlp"):
            where = f"layers.{layer}.{part}"
            for phase in ("forward", "backward"):
                assert record.counts(where=where, axis="tp", purpose="activation", phase=phase) == {"all_reduce": 1}
        assert record.counts(where=f"layers.{layer}.self_attn.q_norm") == {"all_reduce": 1}
    assert not record.select(where="") and record.count(axis="tp") == len(record)
    folded = {row["where"]: row["count"] for row in record.rows(fold=True) if row["purpose"] == "activation"
              and row["phase"] == "forward"}
    assert folded["layers.*.self_attn"] == folded["layers.*.mlp"] == 2
    assert "layers.*.mlp" in str(record)
