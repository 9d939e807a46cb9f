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
"""What names and structure cannot tell about a family of models, as data."""
from dataclasses import dataclass
from typing import Callable, Mapping, Optional, Tuple, Union

from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole


@dataclass(frozen=True)
class ModelAdapterSpec:
    """One family.

    Args:
        model_types: values of `model_type` that name it.
        architectures: class names that name it, where `model_type` is missing.
        sharding_rules: `(glob on the dotted path, role)` or `(glob, role, part)`, first match wins; they stand below
            the user's rules and above everything else.
        qkv_layout: arrangement of a fused qkv weight: a name from `fused_layout`, or a function of the facts.
        gate_up_layout: arrangement of a fused gate/up weight.
        query_layout: arrangement of a query weight that holds more than queries (`query_gate`).
        in_out: globs of weights that are stored `[in, out]`.
        linears_in_out: every linear in a block is stored so (Conv1D), whatever its name.
        stacked: globs of expert weights whose experts lie one below the other in a 2-D weight.
        whole: globs of modules that stay whole on every rank, with the reason.
        head_arguments: `{argument of an attention's forward: the dim that counts heads}`.
        parallel_block: attention and MLP both read the block's input, where no flag says otherwise.
        head_module: path of the output head where its weight is the embedding's.
        state_norm: what the gated norm of a state-space layer runs over, `whole` (its inner width) or `groups` (each
            group by itself); they differ where there are several groups.

    Examples:
        >>> ModelAdapterSpec(("phi3",), qkv_layout="sections", gate_up_layout="halves")
    """

    model_types: Tuple[str, ...]
    architectures: Tuple[str, ...] = ()
    sharding_rules: Tuple[Tuple[str, ParamRole], ...] = ()
    qkv_layout: Union[str, Callable[[ModelFacts], Optional[str]], None] = None
    gate_up_layout: Optional[str] = None
    query_layout: Optional[str] = None
    in_out: Tuple[str, ...] = ()
    linears_in_out: bool = False
    stacked: Tuple[str, ...] = ()
    whole: Tuple[Tuple[str, str], ...] = ()
    head_arguments: Optional[Mapping[str, int]] = None
    parallel_block: bool = False
    head_module: Optional[str] = None
    state_norm: Optional[str] = None

    def qkv(self, facts: ModelFacts) -> Optional[str]:
        """The arrangement of its fused qkv weights."""
        return self.qkv_layout(facts) if callable(self.qkv_layout) else self.qkv_layout


UNKNOWN_FAMILY = ModelAdapterSpec(())
