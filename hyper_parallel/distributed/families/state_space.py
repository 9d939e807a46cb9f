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
"""Families with state-space layers: over what their gated norm runs."""
from hyper_parallel.distributed.model_adapter import ModelAdapterSpec

ADAPTERS = (
    ModelAdapterSpec(("mamba2", "bamba"), ("Mamba2ForCausalLM", "BambaForCausalLM"), state_norm="whole"),
    ModelAdapterSpec(("nemotron_h", "zamba2", "falcon_h1"),
                     ("NemotronHForCausalLM", "Zamba2ForCausalLM", "FalconH1ForCausalLM"), state_norm="groups"),
)
