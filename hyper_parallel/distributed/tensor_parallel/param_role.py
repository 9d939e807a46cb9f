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
"""What a parameter is, read from its name alone.

A role is a fact about the model (`q_proj` is a column linear); where its bytes lie is a rule, kept elsewhere. The rules
here are the plain ones: an ordered list of name patterns, the first match wins, and a name that nothing matches is
SKIP. They are one witness among several: names mislead (`audio_proj` is no `o_proj`, MLA's `linear_qkv` is a latent),
so the planner weighs them against the owner's class, the shapes and the config.
"""
import re
from enum import Enum
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

__all__ = ["ParamRole", "ParameterClassifier", "SEGMENT_EXACT", "SEGMENT_SUBSTRING"]

SEGMENT_EXACT = "segment_exact"
"""Match mode: a dotless pattern is one whole segment of the dotted name."""
SEGMENT_SUBSTRING = "segment_substring"
"""Match mode: a dotless pattern is a fragment of one segment of the dotted name."""
_MODES = (SEGMENT_EXACT, SEGMENT_SUBSTRING)


class ParamRole(Enum):
    """The fourteen things a parameter can be; placements are those of an `[out, in]` weight on the tp axis."""

    COLWISE = "colwise"  # q, k, v, gate, up, and the bias that follows the cut output: Shard(0)
    ROWWISE = "rowwise"  # o, down: Shard(1)
    NORM = "norm"  # weight and bias of a normalisation: Replicate
    EMBED = "embed"  # token table: Shard(0), the vocabulary
    LM_HEAD = "lm_head"  # projection to the vocabulary, and its bias: Shard(0)
    MOE_GATE = "moe_gate"  # router, and its correction bias: Replicate
    MOE_EXPERT = "moe_expert"  # routed expert: ep cuts the expert dim, tp goes by its place in the expert
    SHARED_EXPERT = "shared_expert"  # expert that every token passes: whole on ep, column or row on tp
    FUSED_QKV = "fused_qkv"  # q, k and v in one weight: Shard(0), by sections or head groups
    FUSED_GATE_UP = "fused_gate_up"  # gate and up in one weight: Shard(0), by sections
    BIAS = "bias"  # row-wise bias, or one that no weight rule owns: Replicate, added once after the reduction
    REPLICATED = "replicated"  # a linear that has to stay whole; only evidence, a family or the user says so
    SPECIAL = "special"  # needs a handler of its own: state-space parameters, per-head tables
    SKIP = "skip"  # nothing matched, a buffer, or not a weight to shard


NameRule = Union[Tuple[Sequence[str], ParamRole, str], Tuple[Sequence[str], ParamRole]]
"""`(patterns, role, mode)`; the legacy `(patterns, role)` matches substrings of the whole name."""


def _build_default_rules() -> List[NameRule]:
    """The plain rules, in precedence order.

    Column linears stand before `.bias`, so that their bias follows the cut output; `.bias` stands before row linears,
    so that a row-wise bias is BIAS: it is added once, after the reduction. Containers of shared experts stand before
    the experts because the exact match keeps `shared_expert_gate` out, and the experts before the linears inside them.
    """
    return [
        (("embed_tokens", "wte", "tok_embeddings", "embed_in", "word_embeddings"), ParamRole.EMBED, SEGMENT_SUBSTRING),
        (("lm_head", "embed_out", "output_layer"), ParamRole.LM_HEAD, SEGMENT_SUBSTRING),
        (("shared_expert", "shared_experts"), ParamRole.SHARED_EXPERT, SEGMENT_EXACT),
        (("experts",), ParamRole.MOE_EXPERT, SEGMENT_EXACT),
        (("mlp.gate.", ".router.", "moe_gate", "mlp.router"), ParamRole.MOE_GATE, SEGMENT_SUBSTRING),
        (("fused_qkv", "linear_qkv", "qkv_proj", "query_key_value"), ParamRole.FUSED_QKV, SEGMENT_SUBSTRING),
        (("gate_up_proj", "fused_gate_up", ".w13."), ParamRole.FUSED_GATE_UP, SEGMENT_SUBSTRING),
        (("a_log", "dt_bias", "gated_delta"), ParamRole.SPECIAL, SEGMENT_SUBSTRING),
        (("norm", "layernorm", "rmsnorm", "ln_"), ParamRole.NORM, SEGMENT_SUBSTRING),
        (("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", ".w1.", ".w3."), ParamRole.COLWISE, SEGMENT_SUBSTRING),
        ((".bias",), ParamRole.BIAS, SEGMENT_SUBSTRING),
        (("o_proj", "down_proj", ".w2."), ParamRole.ROWWISE, SEGMENT_SUBSTRING),
    ]


def _as_patterns(patterns: Union[str, Iterable[str]]) -> Tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _match_any(name: str, patterns: Union[str, Iterable[str]]) -> bool:
    """True when any pattern is a substring of the whole name; case does not count.

    Examples:
        >>> _match_any("layers.0.Self_Attn.q_proj.weight", ["attn.q_"])
        True
    """
    name_lower = name.lower()
    return any(pattern.lower() in name_lower for pattern in _as_patterns(patterns))


def _match_pattern(name_lower: str, pattern: str, mode: str) -> bool:
    """True when one pattern matches.

    Args:
        name_lower: the dotted name, in lower case.
        pattern: with a dot, a substring of the whole name, whatever the mode; without, it never crosses a dot.
        mode: `SEGMENT_EXACT` or `SEGMENT_SUBSTRING`, for a pattern without a dot.

    Examples:
        >>> _match_pattern("mlp.shared_expert_gate.weight", "shared_expert", SEGMENT_EXACT)
        False
        >>> _match_pattern("model.input_layernorm.weight", "norm", SEGMENT_SUBSTRING)
        True
    """
    pattern = pattern.lower()
    if "." in pattern:
        return pattern in name_lower
    segments = name_lower.split(".")
    if mode == SEGMENT_EXACT:
        return pattern in segments
    if mode == SEGMENT_SUBSTRING:
        return any(pattern in segment for segment in segments)
    raise ValueError(f"match mode {mode!r} is unknown: valid modes are {', '.join(_MODES)}")


def _match_rule(name_lower: str, patterns: Union[str, Iterable[str]], mode: str) -> bool:
    """True when any pattern of a rule matches; see `_match_pattern`."""
    return any(_match_pattern(name_lower, pattern, mode) for pattern in _as_patterns(patterns))


def _named_parameters(model) -> Iterable[Tuple[str, object]]:
    """`(dotted name, parameter)` of a MindSpore Cell, or of anything with `named_parameters()`."""
    for method in ("parameters_and_names", "named_parameters"):
        if callable(getattr(model, method, None)):
            return getattr(model, method)()
    raise ValueError(f"{type(model).__name__} lists no parameters: a MindSpore Cell, or an object that has "
                     "named_parameters(), is needed")


# A digit-only segment is a layer or expert number: names that differ only there have the same role.
_NUMBER_SEGMENT = re.compile(r"(?<![^.])\d+(?![^.])")


class ParameterClassifier:
    """Gives every parameter a role, by name: explicit override, then rules, then SKIP.

    Args:
        name_rules: replaces the default list. Entries are `(patterns, role, mode)`, or legacy `(patterns, role)`, which
            match as substrings of the whole lower-cased name. None means the default list; an empty list makes
            everything SKIP.
        arch_overrides: `{architecture: [(pattern | [patterns], role), ...]}`, checked first, as case-insensitive
            substrings of the whole name.

    Raises:
        ValueError: an entry of another form, an unknown mode, or a role that is no `ParamRole`.

    Examples:
        >>> ParameterClassifier().classify_param("model.layers.0.self_attn.q_proj.weight")
        <ParamRole.COLWISE: 'colwise'>
        >>> own = ParameterClassifier(arch_overrides={"my_arch": [("adapter.down", ParamRole.ROWWISE)]})
        >>> own.classify(cell, arch="my_arch")                                                      # doctest: +SKIP
    """

    def __init__(self, name_rules: Optional[Sequence[NameRule]] = None,
                 arch_overrides: Optional[Dict[str, Sequence[Tuple[Union[str, Sequence[str]], ParamRole]]]] = None):
        rules = _build_default_rules() if name_rules is None else name_rules
        self.name_rules = [_checked_rule(rule, "name_rules") for rule in rules]
        self.arch_overrides = {arch: [_checked_rule(entry, f"arch_overrides[{arch!r}]") for entry in entries]
                               for arch, entries in (arch_overrides or {}).items()}

    def classify(self, model, arch: str = "") -> Dict[str, ParamRole]:
        """The role of every parameter of the model, in the model's order.

        Args:
            model: a MindSpore Cell, or an object that has `named_parameters()`.
            arch: key into `arch_overrides`; an architecture without an entry has no overrides.

        Returns:
            `{dotted parameter name: role}`.

        Raises:
            ValueError: the model lists no parameters.
        """
        overrides = self.arch_overrides.get(arch, [])
        numbers_count = any(part.isdigit() for patterns, *_ in self.name_rules + overrides
                            for pattern in patterns for part in pattern.split("."))
        known: Dict[str, ParamRole] = {}
        roles = {}
        for name, _ in _named_parameters(model):
            template = name if numbers_count else _NUMBER_SEGMENT.sub("0", name)
            if template not in known:
                known[template] = self.classify_param(name, overrides)
            roles[name] = known[template]
        return roles

    def classify_param(self, name: str,
                       overrides: Optional[Sequence[Tuple[Union[str, Sequence[str]], ParamRole]]] = None) -> ParamRole:
        """The role of one dotted name.

        Args:
            name: the full dotted name.
            overrides: `[(pattern | [patterns], role), ...]`, checked before the rules.

        Returns:
            The role of the first override or rule that matches, else SKIP.
        """
        name_lower = name.lower()
        for patterns, role in overrides or ():
            if _match_any(name_lower, patterns):
                return role
        for patterns, role, *mode in self.name_rules:
            if _match_rule(name_lower, patterns, mode[0]) if mode else _match_any(name_lower, patterns):
                return role
        return ParamRole.SKIP


def _checked_rule(rule, where: str) -> tuple:
    """The rule with its patterns as a tuple, or a ValueError that shows the form."""
    is_override = where != "name_rules"
    form = "(pattern or [patterns], ParamRole)" if is_override else "(patterns, ParamRole[, mode])"
    if not isinstance(rule, (tuple, list)) or len(rule) not in ((2,) if is_override else (2, 3)):
        raise ValueError(f"{where}: {rule!r} is no rule: write {form}")
    patterns, role, *mode = rule
    if not isinstance(role, ParamRole):
        raise ValueError(f"{where}: role {role!r} of {patterns!r} is none of ParamRole's "
                         f"{', '.join(member.name for member in ParamRole)}")
    if mode and mode[0] not in _MODES:
        raise ValueError(f"{where}: match mode {mode[0]!r} of {patterns!r} is unknown: valid modes are "
                         f"{', '.join(_MODES)}")
    return (_as_patterns(patterns), role, *mode)
