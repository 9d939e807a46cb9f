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
"""Pieces of `verify` that need no ranks."""
import numpy as np

import hyper_parallel as hp
from hyper_parallel.distributed.recipe_spec import ParameterSpec
from hyper_parallel.core.dtensor.slice_map import SliceMap
from hyper_parallel.distributed.verify import _says
from hyper_parallel.distributed.verify_causes import _layouts
from hyper_parallel.distributed.verify_report import HEAD_COUNT, Suspect, VerifyReport
from hyper_parallel.distributed.verify_trace import part_of
from tests.models.fused_decoder import RIGHT_LAYOUT, fused_decoder


def test_a_ranks_part_of_a_result_is_found_by_its_shape():
    whole = np.arange(8).reshape(2, 4)
    assert part_of(whole, (2, 4), 1, 2) is whole
    assert part_of(whole, (2, 2), 1, 2).tolist() == [[2, 3], [6, 7]]
    assert part_of(whole, (1, 4), 0, 2).tolist() == [[0, 1, 2, 3]]
    for shape in ((8,), (1, 2), (2, 3)):
        assert part_of(whole, shape, 0, 2) is None, shape


def test_a_model_that_cannot_run_sharded_is_a_report_without_tensors():
    plan = hp.plan(fused_decoder(), tp=2, overrides=[RIGHT_LAYOUT])
    suspect = Suspect(HEAD_COUNT, "attn.pieces", "reads 4")
    report = VerifyReport(2, 1e-4, (), plan, "graph", (suspect,), "ValueError: no fit")
    assert not report.ok and report.worst is None
    assert str(report).splitlines() == ["tp 2 against 1 (graph): the sharded model could not run: ValueError: no fit",
                                        "suspected: head count at attn.pieces: reads 4"]
    assert report.to_dict()["error"] == "ValueError: no fit" and report.to_dict()["differences"] == []


def test_errors_of_the_compiler_lose_their_rulers():
    assert _says(ValueError("\n-----\n- The message:\n-----\nreshape [2]\n")) == "- The message: reshape [2]"


def test_every_layout_that_fits_the_rows_is_tried():
    def layouts(rows, heads):
        spec = ParameterSpec("w", (rows, 4), "float32", "FUSED_QKV", {}, SliceMap.plain((rows, 4), 0, 2))
        return [name for name, _ in _layouts(spec, spec.slice_map.cuts[0], heads)]

    assert layouts(48, (4, 4, 4)) == ["sections", "per_head", "per_group", "four_blocks"]
    assert layouts(32, (4, 2, 4)) == ["sections", "per_group"]
    assert layouts(16, (4, 2, 4)) == ["per_head", "sections"]
    assert layouts(24, None) == ["halves", "interleaved"] and layouts(20, (4, 2, 4)) == []
