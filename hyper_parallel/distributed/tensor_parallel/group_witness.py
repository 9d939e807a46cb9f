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
"""Structure as a witness: vocabularies, routers and tables by their own shapes, linears by those around them."""
from dataclasses import replace
from typing import Dict, List

from hyper_parallel.distributed.tensor_parallel import parts, structure
from hyper_parallel.distributed.tensor_parallel.decisions import same_cut
from hyper_parallel.distributed.tensor_parallel.ledger import Ledger
from hyper_parallel.distributed.tensor_parallel.param_role import ParamRole
from hyper_parallel.distributed.tensor_parallel.surroundings import Surroundings, ancestors, block_of
from hyper_parallel.distributed.tensor_parallel.units import Unit


class GroupWitness:
    """Decides what names left open.

    Args:
        around: the model's units.
        ledger: where decisions are written.
        ordered: the inventory lists modules in the order of registration.
    """

    def __init__(self, around: Surroundings, ledger: Ledger, ordered: bool):
        self._around = around
        self._ledger = ledger
        self._ordered = ordered
        self._biases_of_stacks: List[Unit] = []

    def solve(self, open_units: List[Unit]):
        """Decide or give up every unit that names left open."""
        self._solve_vocabulary([unit for unit in open_units if unit.dims == 2])
        self._solve_singles([unit for unit in open_units if unit.main.path not in self._ledger.decisions])
        remaining = [unit for unit in open_units if unit.main.path not in self._ledger.decisions]
        waiting = {unit.path: unit for unit in remaining if self._can_be_linear(unit)
                   and not self._around.stands_outside(unit) and unit not in self._biases_of_stacks
                   and not any(scope in self._around.state_scopes for scope in ancestors(unit.path)[1:])}
        verdicts: Dict[str, structure.Verdict] = {}
        scopes = {scope for unit in waiting.values() for scope in ancestors(unit.scope)}
        for scope in sorted(scopes, key=lambda scope: -scope.count(".")):
            own = [unit for unit in waiting.values() if unit.scope == scope]
            if own:
                self._solve_group(scope, own, waiting, verdicts)
            below = [unit for unit in waiting.values() if unit.path.startswith(f"{scope}.")]
            if len(below) > len(own) and block_of(below[0]) in ancestors(scope):
                self._solve_group(scope, below, waiting, verdicts)
        for unit in remaining:
            if unit.main.path not in self._ledger.decisions and unit.main.path not in self._ledger.undecided:
                verdict = verdicts.get(unit.path)
                self._ledger.give_up(unit, verdict.reason if verdict else "no rule, structure or name decides it",
                              verdict.candidates if verdict else ())

    def _can_be_linear(self, unit: Unit) -> bool:
        """One side of it is the residual stream or a latent."""
        widths = {self._around.width(unit), self._around.facts.q_lora_rank, self._around.facts.kv_lora_rank} - {None}
        is_matrix = unit.dims == 2 or (unit.dims == 3 and self._around.is_expert(unit))
        return is_matrix and (not widths or bool(widths & set(unit.shape[-2:]))) and min(unit.shape[-2:]) > 1

    def _solve_group(self, scope: str, inside: List[Unit], waiting: Dict[str, Unit], verdicts):
        named = [unit for unit in self._around.by_scope.get(scope, ()) if unit.dims == inside[0].dims
                 and unit.main.path in self._ledger.decisions
                 and self._ledger.decisions[unit.main.path].part in parts.ATTENTION_PARTS + parts.MLP_PARTS]
        position = {path: at for at, path in enumerate(self._around.inventory.parameters)}
        group = sorted(named + inside, key=lambda unit: position[unit.main.path])
        first = inside[0]
        verdict = structure.solve(group, self._around.facts_of(first), self._around.width(first), bool(self._ordered),
                                  expert=self._around.is_expert(first) or self._around.is_shared(first))
        doubtful = self._doubtful_expert(first, verdict)
        if doubtful:
            verdict = structure.Verdict({}, doubtful)
        for unit in inside:
            if unit.path not in verdicts or verdict.candidates:
                verdicts[unit.path] = verdict
        if not verdict.parts:
            return
        clash = [unit for unit in named if unit.path in verdict.parts and not same_cut(verdict.parts[unit.path],
                                                         self._ledger.decisions[unit.main.path].part)]
        if clash:
            for unit in inside:
                verdicts[unit.path] = structure.Verdict({}, f"the shapes contradict the name of {clash[0].path!r}")
            return
        for unit in inside:
            if unit.path not in verdict.parts:
                continue
            part = verdict.parts[unit.path]
            role = self._around.container_role(unit, part)
            if role is None and part in parts.MLP_PARTS and self._around.stands_beside_experts(unit):
                role = ParamRole.SHARED_EXPERT
            self._ledger.decide(unit, part, verdict.reason, role=role)
            if unit.dims == 3:
                decision = self._ledger.decisions[unit.main.path]
                self._ledger.decisions[unit.main.path] = replace(decision, transposed=structure.experts_in_out(
                    unit, part, self._around.width(unit)))
            del waiting[unit.path]

    def _doubtful_expert(self, unit: Unit, verdict: structure.Verdict) -> str:
        """Why a feed-forward layer of a model with experts may be one of them, or ""."""
        facts = self._around.facts
        if not facts.experts or not verdict.parts or not set(verdict.parts.values()) <= set(parts.MLP_PARTS) or \
                self._around.is_expert(unit) or self._around.is_shared(unit) or \
                self._around.stands_beside_experts(unit):
            return ""
        if len(unit.number_segments) > 1:
            return f"a numbered module below a block, but not one of {facts.experts} experts of one make"
        down = next((path for path, part in verdict.parts.items() if part == parts.DOWN), None)
        width = max(self._around.by_path[down].shape[-2:]) if down else None
        narrow = min(self._around.by_path[down].shape[-2:]) if down else None
        sizes = {facts.expert_ffn_size, facts.shared_ffn_size} - {None, facts.ffn_size}
        if sizes & {width, narrow}:
            return "as wide as an expert, but no experts are seen beside it"
        return ""

    def _solve_vocabulary(self, open_units: List[Unit]):
        tables = [unit for unit in self._around.units if unit.dims == 2 and self._ledger.decisions.get(
            unit.main.path) is not None and self._ledger.decisions[unit.main.path].part == parts.TOKENS]
        heads = [unit for unit in self._around.units if self._ledger.decisions.get(unit.main.path) is not None
                 and self._ledger.decisions[unit.main.path].part == parts.HEAD]
        vocabulary = self._around.facts.vocab_size or (tables[0].shape[0] if len(tables) == 1 else None)
        fitting = [unit for unit in open_units if unit.shape[0] == vocabulary and self._around.stands_outside(unit)]
        if not fitting:
            return
        rows = f"{vocabulary} rows are the vocabulary"
        if len(fitting) == 1 and tables:
            self._ledger.decide(fitting[0], parts.HEAD, rows, "the table is another", region=fitting[0].path)
        elif len(fitting) == 1:
            self._ledger.decide(fitting[0], parts.TOKENS, rows, "nothing else has them", region=fitting[0].path)
        elif len(fitting) == 2 and not tables and not heads:
            self._solve_table_and_head(fitting, rows)

    def _solve_table_and_head(self, fitting: List[Unit], rows: str):
        root = (self._around.block_roots[0] if self._around.block_roots else "").rpartition(".")[0]
        inside = [unit for unit in fitting if root and unit.path.startswith(f"{root}.")]
        if len(inside) == 1:
            table, why = inside[0], f"it stands beside the blocks in '{root}', the other outside"
        elif self._ordered:
            table, why = fitting[0], "registered first"
        else:
            for unit in fitting:
                self._ledger.give_up(unit, f"{rows}, and so are another's", ("embedding", "output head"))
            return
        for unit in fitting:
            self._ledger.decide(unit, parts.TOKENS if unit is table else parts.HEAD, rows, why, region=unit.path)

    def _solve_singles(self, open_units: List[Unit]):
        """Routers, scalar gates and tables, which their own shapes tell."""
        facts = self._around.facts
        for unit in open_units:
            hidden = self._around.width(unit)
            if unit.dims != 2 or unit.main.path in self._ledger.undecided:
                continue
            rows, columns = unit.shape
            if unit.is_bare and rows == facts.experts and self._stack_bias(unit):
                continue
            if self._around.stands_outside(unit) and not unit.number_segments:
                positions = [size for size in (facts.positions, facts.source_positions, facts.token_types) if size]
                if any(rows in (size, size + 2) for size in positions) and columns == hidden and rows != hidden:
                    self._ledger.decide(unit, parts.OTHER,
                                        f"{rows} rows are the positions or types that the configuration gives")
            elif facts.relative_buckets and facts.heads and set(unit.shape) == {facts.relative_buckets, facts.heads}:
                self._ledger.decide(unit, parts.HEAD_TABLE, f"{rows} rows are the buckets, {columns} columns the heads")
            elif facts.experts and rows == facts.experts and columns == hidden and not unit.is_bare and \
                    self._around.has_experts_beside(unit):
                self._ledger.decide(unit, parts.ROUTER, f"{rows} rows are the experts, beside them")
            elif rows == 1 and columns == hidden and self._around.has_experts_beside(unit):
                self._ledger.decide(unit, parts.SCALAR_GATE, "one row beside experts")

    def _stack_bias(self, unit: Unit) -> bool:
        """A bare `[experts, n]` beside stacks of experts is the bias of the one that puts out n."""
        self._biases_of_stacks.append(unit)
        return True

    def label_stack_biases(self):
        """Biases of stacks, once the stacks are decided."""
        for unit in self._biases_of_stacks:
            stacks = [other for other in self._around.by_scope[unit.scope] if other.dims == 3
                      and other.main.path in self._ledger.decisions
                      and self._ledger.sizes(other)[0] == unit.shape[1]]
            if len(stacks) == 1:
                base = self._ledger.decisions[stacks[0].main.path]
                self._ledger.decisions[unit.main.path] = replace(
                    base, reasons=(f"{unit.shape[1]} columns are what {stacks[0].main.path} puts out",), rejected=(),
                    is_bias=True, of=stacks[0].main.path)
                self._ledger.undecided.pop(unit.main.path, None)
            elif unit.main.path not in self._ledger.decisions:
                self._ledger.give_up(unit, f"{unit.shape[0]} rows are the experts, but {len(stacks)} stacks put out "
                                    f"{unit.shape[1]} columns")
