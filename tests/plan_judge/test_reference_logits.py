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
"""A plan's numbers: local weights, partial results summed, give the reference library's logits at every size."""
from pathlib import Path

import numpy as np
import pytest

from decoders import DECODERS
from emulate import Ranks
from other_decoders import t5
from special_decoders import OTHERS

FOLDERS = Path(__file__).resolve().parents[3] / "shared" / "cases" / "models"


@pytest.mark.skipif(not FOLDERS.is_dir(), reason="the folders with the real models are not here")
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", list(DECODERS) + list(OTHERS))
def test_local_weights_give_the_reference_logits(name, tp):
    reference = np.load(FOLDERS / name / "reference.npz")
    ranks = Ranks(FOLDERS / name, tp)
    for ids, expected in zip(reference["input_ids"], reference["logits"]):
        found = {**DECODERS, **OTHERS}[name](ranks, ids)
        assert np.abs(found - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())


@pytest.mark.skipif(not FOLDERS.is_dir(), reason="the folders with the real models are not here")
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_local_weights_of_an_encoder_decoder_give_the_reference_logits(tp):
    reference = np.load(FOLDERS / "t5" / "reference.npz")
    ranks = Ranks(FOLDERS / "t5", tp)
    for ids, decoder_ids, expected in zip(reference["input_ids"], reference["decoder_input_ids"], reference["logits"]):
        assert np.abs(t5(ranks, ids, decoder_ids) - expected).max() < 1e-4 * max(1.0, np.abs(expected).max())


@pytest.mark.skipif(not FOLDERS.is_dir(), reason="the folders with the real models are not here")
def test_the_judge_sees_a_wrong_layout():
    reference = np.load(FOLDERS / "bloom" / "reference.npz")
    ranks = Ranks(FOLDERS / "bloom", 2, overrides=[{"match": "*.query_key_value.*", "fused_layout": "sections"}])
    found = DECODERS["bloom"](ranks, reference["input_ids"][0])
    assert np.abs(found - reference["logits"][0]).max() > 1e-2
