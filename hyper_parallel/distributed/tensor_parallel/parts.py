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
"""What a parameter does inside its module. The planner reads parts, never names, once the evidence is in."""
from typing import Dict

from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole

# attention
QUERY, KEY, VALUE, QKV, KEY_VALUE, ATTENTION_OUT = "query", "key", "value", "qkv", "key_value", "attention_out"
LATENT = "latent"  # what is projected down before the heads (MLA): whole on every rank
HEAD_GATE = "head_gate"  # one column of gates per head element, or one per head
HEAD_VECTOR, HEAD_TABLE = "head_vector", "head_table"  # [heads] and [buckets, heads]
# feed-forward
GATE, UP, GATE_UP, DOWN = "gate", "up", "gate_up", "down"
CHANNEL_GATE = "channel_gate"  # multiplies the partial result of a feed-forward layer: whole
# mixture of experts
ROUTER, SCALAR_GATE = "router", "scalar_gate"
# state space, gated delta, short convolution
STATE_IN, STATE_CONV, STATE_VECTOR, STATE_NORM, STATE_OUT = \
    "state_in", "state_conv", "state_vector", "state_norm", "state_out"
STATE_SMALL, STATE_STEP, STATE_MIX = "state_small", "state_step", "state_mix"  # x_proj, dt_proj, time mixing
# outside of the blocks
TOKENS, HEAD, NORM_SCALE, OTHER = "tokens", "head", "norm", "other"

ATTENTION_PARTS = (QUERY, KEY, VALUE, QKV, KEY_VALUE, ATTENTION_OUT, LATENT, HEAD_GATE, HEAD_VECTOR, HEAD_TABLE)
MLP_PARTS = (GATE, UP, GATE_UP, DOWN, CHANNEL_GATE)
MOE_PARTS = (ROUTER, SCALAR_GATE)
STATE_PARTS = (STATE_IN, STATE_CONV, STATE_VECTOR, STATE_NORM, STATE_OUT, STATE_SMALL, STATE_STEP, STATE_MIX)
ROW_PARTS = (ATTENTION_OUT, DOWN, STATE_OUT)

ROLE_OF_PART: Dict[str, ParamRole] = {
    QUERY: ParamRole.COLWISE, KEY: ParamRole.COLWISE, VALUE: ParamRole.COLWISE, KEY_VALUE: ParamRole.COLWISE,
    QKV: ParamRole.FUSED_QKV, ATTENTION_OUT: ParamRole.ROWWISE, LATENT: ParamRole.REPLICATED,
    HEAD_GATE: ParamRole.COLWISE, HEAD_VECTOR: ParamRole.COLWISE, HEAD_TABLE: ParamRole.SPECIAL,
    GATE: ParamRole.COLWISE, UP: ParamRole.COLWISE, GATE_UP: ParamRole.FUSED_GATE_UP, DOWN: ParamRole.ROWWISE,
    CHANNEL_GATE: ParamRole.REPLICATED, ROUTER: ParamRole.MOE_GATE, SCALAR_GATE: ParamRole.REPLICATED,
    STATE_IN: ParamRole.SPECIAL, STATE_CONV: ParamRole.SPECIAL, STATE_VECTOR: ParamRole.SPECIAL,
    STATE_NORM: ParamRole.SPECIAL, STATE_OUT: ParamRole.ROWWISE, STATE_SMALL: ParamRole.SPECIAL,
    STATE_STEP: ParamRole.SPECIAL, STATE_MIX: ParamRole.SPECIAL,
    TOKENS: ParamRole.EMBED, HEAD: ParamRole.LM_HEAD, NORM_SCALE: ParamRole.NORM, OTHER: ParamRole.REPLICATED,
}
PART_OF_ROLE: Dict[ParamRole, str] = {
    ParamRole.EMBED: TOKENS, ParamRole.LM_HEAD: HEAD, ParamRole.NORM: NORM_SCALE, ParamRole.FUSED_QKV: QKV,
    ParamRole.FUSED_GATE_UP: GATE_UP, ParamRole.MOE_GATE: ROUTER, ParamRole.REPLICATED: OTHER, ParamRole.SKIP: OTHER,
}
