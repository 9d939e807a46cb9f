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
"""The estimate of data-parallel sharding against sums by hand over the decoder's parameters."""
import math

import hyper_parallel as hp
from hyper_parallel.distributed.estimate_sharding import estimate_sharding
from tests.models.decoder import Decoder, DecoderConfig


def decoder():
    """Two blocks; every first dim is even."""
    return Decoder(DecoderConfig(num_attention_heads=4, num_key_value_heads=2, head_dim=4))


def test_bytes_and_collectives_of_two_shards_by_hand():
    sizes = {path: 4 * math.prod(one.shape) for path, one in decoder().parameters_and_names()}
    whole, block = sum(sizes.values()), sum(size for path, size in sizes.items() if path.startswith("layers.0."))
    rest = whole - 2 * block
    found = estimate_sharding(hp.plan(decoder(), tp=1), 2, ["layers.*"])
    assert (found.parameters, found.gradients, found.optimizer) == (whole // 2, whole // 2, whole)
    assert found.gathered_peak == max(2 * block, block + rest)
    assert (found.gather_bytes, found.reduce_bytes) == ((4 * block + rest) / 2, whole / 2)
    assert (found.all_gathers, found.reduce_scatters) == (5, 3)
    kept = estimate_sharding(hp.plan(decoder(), tp=1), 2, ["layers.*"], reshard_after_forward=False)
    assert (kept.gather_bytes, kept.all_gathers) == (whole / 2, 3)
    alone = estimate_sharding(hp.plan(decoder(), tp=1), 2)
    assert (alone.gathered_peak, alone.all_gathers) == (whole, 1)


def test_inside_tensor_parallelism_the_gathered_unit_is_one_ranks_own():
    alone, inside = (estimate_sharding(hp.plan(decoder(), tp=tp), 2, ["layers.*"]) for tp in (1, 2))
    assert inside.gathered_peak < 0.6 * alone.gathered_peak and inside.parameters < 0.6 * alone.parameters


def test_the_smallest_module_that_is_named_first_takes_the_parameter():
    units = ["layers.*.mlp", "layers.*"]
    assert estimate_sharding(hp.plan(decoder(), tp=1), 2, units).reduce_scatters == 2 * 2 + 1
