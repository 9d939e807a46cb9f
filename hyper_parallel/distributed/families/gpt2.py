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
"""GPT-2 and its kin store their linears as Conv1D, `[in, out]`, and `c_attn` is `[Q|K|V]`."""
from hyper_parallel.distributed.model_adapter import ModelAdapterSpec

ADAPTERS = (ModelAdapterSpec(
    ("gpt2", "openai-gpt", "decision_transformer", "imagegpt"), ("GPT2LMHeadModel", "GPT2Model"),
    qkv_layout="sections", in_out=("*.c_attn.weight", "*.c_proj.weight", "*.c_fc.weight", "*.q_attn.weight"),
    linears_in_out=True),)
