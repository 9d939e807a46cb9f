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
"""What each parameter is, decided by evidence: user rules, then structure and anchored names that must agree.

A name is believed only as a whole segment (`conv_proj` is not `o_proj`) and only where the shape does not contradict
it. Nothing is guessed: what no evidence decides is refused with the candidates named, or replicated when asked.
"""
import difflib
import fnmatch
import re
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Sequence, Tuple

from hyper_parallel.distributed.inventory import Inventory, ParameterRecord
from hyper_parallel.distributed.tensor_parallel.param_role import ParameterClassifier, ParamRole

# what a weight does inside its region; the planner reads parts, never names, once the evidence is in
QUERY, KEY, VALUE, QKV, ATTENTION_OUT = "query", "key", "value", "qkv", "attention_out"
GATE, UP, GATE_UP, DOWN = "gate", "up", "gate_up", "down"
TOKENS, HEAD, NORM_SCALE, OTHER = "tokens", "head", "norm", "other"
ATTENTION_PARTS = (QUERY, KEY, VALUE, QKV, ATTENTION_OUT)
MLP_PARTS = (GATE, UP, GATE_UP, DOWN)

_SEGMENTS = {
    QUERY: ("q_proj", "wq", "linear_q", "query", "q_linear"),
    KEY: ("k_proj", "wk", "linear_k", "key", "k_linear"),
    VALUE: ("v_proj", "wv", "linear_v", "value", "v_linear"),
    QKV: ("qkv_proj", "linear_qkv", "fused_qkv", "qkv", "w_qkv", "wqkv", "query_key_value"),
    ATTENTION_OUT: ("o_proj", "out_proj", "wo", "linear_proj"),
    GATE: ("gate_proj", "w1", "gating"),
    UP: ("up_proj", "w3"),
    GATE_UP: ("gate_up_proj", "fused_gate_up", "w13", "w_gate_hidden", "linear_fc1"),
    DOWN: ("down_proj", "w2", "linear_fc2"),
    TOKENS: ("embed_tokens", "word_embeddings", "tok_embeddings", "embed_in", "wte"),
    HEAD: ("lm_head", "output_layer", "embed_out"),
}
_PART_OF_SEGMENT = {segment: part for part, segments in _SEGMENTS.items() for segment in segments}
_ROLE_OF_PART = {
    QUERY: ParamRole.COLWISE, KEY: ParamRole.COLWISE, VALUE: ParamRole.COLWISE, QKV: ParamRole.FUSED_QKV,
    ATTENTION_OUT: ParamRole.ROWWISE, GATE: ParamRole.COLWISE, UP: ParamRole.COLWISE,
    GATE_UP: ParamRole.FUSED_GATE_UP, DOWN: ParamRole.ROWWISE, TOKENS: ParamRole.EMBED, HEAD: ParamRole.LM_HEAD,
}
_PART_OF_ROLE = {ParamRole.EMBED: TOKENS, ParamRole.LM_HEAD: HEAD, ParamRole.NORM: NORM_SCALE,
                 ParamRole.FUSED_QKV: QKV, ParamRole.FUSED_GATE_UP: GATE_UP}
_NORM_SEGMENT = re.compile(r"(.*_)?((layer|rms)_?)?norm(_\w+)?|ln_\w+|.*layernorm")
_BIAS_LEAVES = ("bias", "beta")
_LINEAR_LEAVES = ("weight",)


@dataclass(frozen=True)
class Decision:
    """What a parameter is, and why.

    Args:
        role: the role.
        part: what it does inside its region.
        region: path of the module whose contract it belongs to.
        reasons: the evidence, strongest first.
        rejected: what else was possible and why it lost.
    """

    role: ParamRole
    part: str
    region: str
    reasons: Tuple[str, ...]
    rejected: Tuple[str, ...] = ()


@dataclass(frozen=True)
class RoleRule:
    """A user's word about parameters: glob on the dotted path, and the role they have."""

    match: str
    role: ParamRole


def read_rules(rules: Sequence) -> Tuple[RoleRule, ...]:
    """Rules from YAML (`{match: "*.adapter.down.weight", role: ROWWISE}`) or already read.

    Raises:
        ValueError: a key is missing or the role is not one of the fourteen.
    """
    read = []
    for rule in rules or ():
        if isinstance(rule, RoleRule):
            read.append(rule)
            continue
        if not isinstance(rule, Mapping) or set(rule) != {"match", "role"}:
            raise ValueError(f"auto_tp_config.rules: each rule is {{match: GLOB, role: ROLE}}, got {rule!r}")
        role = rule["role"] if isinstance(rule["role"], ParamRole) else ParamRole.__members__.get(str(rule["role"]))
        if role is None:
            raise ValueError(f"auto_tp_config.rules: {rule['role']!r} is no role; roles are "
                             f"{', '.join(ParamRole.__members__)}")
        read.append(RoleRule(str(rule["match"]), role))
    return tuple(read)


class EvidenceClassifier:
    """Roles of all parameters of an inventory.

    Args:
        inventory: the model.
        rules: user rules, first match wins over all other evidence.
        unknown: "error" refuses what nothing decides; "replicate" leaves it whole.
    """

    def __init__(self, inventory: Inventory, rules: Sequence[RoleRule] = (), unknown: str = "error"):
        self._inventory = inventory
        self._facts = inventory.facts
        self._rules = rules
        self._unknown = unknown
        self._used = set()

    def classify(self) -> Dict[str, Decision]:
        """Every parameter's decision, in the inventory's order.

        Raises:
            ValueError: a parameter that nothing decides, or a rule that matches nothing.
        """
        decisions = {}
        for path, record in self._inventory.parameters.items():
            if record.leaf not in _BIAS_LEAVES:
                decisions[path] = self._decide(record)
        for path, record in self._inventory.parameters.items():
            if record.leaf in _BIAS_LEAVES:
                decisions[path] = self._decide_bias(record, decisions)
        unused = [rule.match for rule in self._rules if rule.match not in self._used]
        if unused:
            raise ValueError(f"auto_tp_config.rules: {unused[0]!r} matches no parameter; nearest: "
                             f"{', '.join(nearest(unused[0], self._inventory.parameters))}")
        return {path: decisions[path] for path in self._inventory.parameters}

    def _decide(self, record: ParameterRecord) -> Decision:
        by_rule = self._by_rule(record)
        if by_rule:
            return by_rule
        if len(record.shape) == 1 and record.is_norm_owned:
            return Decision(ParamRole.NORM, NORM_SCALE, record.owner, (f"owner is a {record.owner_class}",))
        segment, region = self._segment_and_region(record)
        part = _PART_OF_SEGMENT.get(segment)
        if record.is_table and part in (None, TOKENS) and record.shape[0] == self._facts.vocab_size:
            return Decision(ParamRole.EMBED, TOKENS, record.owner,
                            (f"owner is a {record.owner_class}", f"{record.shape[0]} rows are the vocabulary"))
        if part is None:
            if len(record.shape) == 1 and not record.owner_class and _NORM_SEGMENT.fullmatch(segment):
                return Decision(ParamRole.NORM, NORM_SCALE, record.owner,
                                (f"owner segment '{segment}'", "one dim"))
            return self._undecided(record)
        if part == GATE_UP and segment == "linear_fc1" and not self._is_gated(record):
            part = UP
        reason, contradiction = self._check_shape(record, part)
        if contradiction:
            return self._undecided(record, f"segment '{segment}' says {part}, but {contradiction}")
        role = _ROLE_OF_PART[part]
        if part in (TOKENS, HEAD):
            region = record.owner
        return Decision(role, part, region, (f"segment '{segment}'",) + ((reason,) if reason else ()))

    def _by_rule(self, record: ParameterRecord) -> Optional[Decision]:
        for rule in self._rules:
            if fnmatch.fnmatchcase(record.path, rule.match):
                self._used.add(rule.match)
                segment, region = self._segment_and_region(record)
                part = _PART_OF_ROLE.get(rule.role) or _PART_OF_SEGMENT.get(segment, OTHER)
                return Decision(rule.role, part, region, (f"user rule '{rule.match}'",))
        return None

    def _segment_and_region(self, record: ParameterRecord) -> Tuple[str, str]:
        """The segment that names the parameter, and the module whose contract it belongs to: `a.mlp.up_proj.weight`
        is named by `up_proj` and belongs to `a.mlp`; a raw parameter `a.mlp.up_proj` likewise."""
        if record.leaf in _LINEAR_LEAVES or record.leaf in _BIAS_LEAVES or record.leaf == "embedding_table":
            return record.owner.rpartition(".")[2].lower(), record.owner.rpartition(".")[0]
        return record.leaf.lower(), record.owner

    def _is_gated(self, record: ParameterRecord) -> bool:
        if self._facts.gated is not None:
            return self._facts.gated
        return self._facts.ffn_size is not None and record.shape[0] == 2 * self._facts.ffn_size

    def _check_shape(self, record: ParameterRecord, part: str) -> Tuple[Optional[str], Optional[str]]:
        """(confirmation, contradiction) of a part by the sizes that the configuration gives."""
        facts, shape = self._facts, record.shape
        if len(shape) != 2:
            return None, f"it has {len(shape)} dims, not 2"
        rows, columns = shape
        q_rows = facts.heads * facts.head_dim if facts.heads and facts.head_dim else None
        expected = {
            QUERY: (q_rows, facts.hidden_size), KEY: (None, facts.hidden_size), VALUE: (None, facts.hidden_size),
            QKV: (None, facts.hidden_size), ATTENTION_OUT: (facts.hidden_size, q_rows),
            GATE: (facts.ffn_size, facts.hidden_size), UP: (facts.ffn_size, facts.hidden_size),
            GATE_UP: (2 * facts.ffn_size if facts.ffn_size else None, facts.hidden_size),
            DOWN: (facts.hidden_size, facts.ffn_size), TOKENS: (facts.vocab_size, facts.hidden_size),
            HEAD: (facts.vocab_size, facts.hidden_size),
        }[part]
        for size, wanted, word in ((rows, expected[0], "rows"), (columns, expected[1], "columns")):
            if wanted is not None and size != wanted:
                return None, f"its {size} {word} are not the {wanted} that the configuration gives"
        if part in (KEY, VALUE, QKV) and facts.head_dim and rows % facts.head_dim:
            return None, f"its {rows} rows are no whole number of heads of {facts.head_dim}"
        confirmed = [f"{size} {word}" for size, wanted, word in
                     ((rows, expected[0], "rows"), (columns, expected[1], "columns")) if wanted is not None]
        return (f"{' and '.join(confirmed)} as configured" if confirmed else None), None

    def _decide_bias(self, record: ParameterRecord, decisions: Mapping[str, Decision]) -> Decision:
        by_rule = self._by_rule(record)
        if by_rule:
            return by_rule
        siblings = [path for path in decisions if path.rpartition(".")[0] == record.owner
                    and self._inventory.parameters[path].leaf not in _BIAS_LEAVES]
        if len(siblings) != 1:
            return self._undecided(record, f"its owner has {len(siblings)} weights")
        weight = decisions[siblings[0]]
        role = ParamRole.BIAS if weight.role is ParamRole.ROWWISE else weight.role
        return Decision(role, weight.part, weight.region, (f"bias of {siblings[0]} ({weight.role.name})",))

    def _undecided(self, record: ParameterRecord, why: str = "no rule, structure or name decides it") -> Decision:
        if self._unknown == "replicate":
            return Decision(ParamRole.REPLICATED, OTHER, record.owner, ("auto_tp_config.unknown: replicate",), (why,))
        plain = ParameterClassifier().classify_param(record.path)
        hint = f" Its name alone would say {plain.name}." if plain is not ParamRole.SKIP else ""
        raise ValueError(
            f"cannot decide what {record.path!r} {list(record.shape)} is ({why}).{hint} Say it with "
            f"auto_tp_config.rules: [{{match: \"{record.path}\", role: ROLE}}] (roles: "
            f"{', '.join(ParamRole.__members__)}), or set auto_tp_config.unknown: replicate")


def part_of_segment(segment: str) -> Optional[str]:
    """The part that a whole path segment names, or None."""
    return _PART_OF_SEGMENT.get(segment.lower())


def nearest(pattern: str, names, count: int = 3) -> Tuple[str, ...]:
    """The names closest to a pattern that matched nothing, for error messages."""
    return tuple(difflib.get_close_matches(pattern, list(names), n=count, cutoff=0.0))
