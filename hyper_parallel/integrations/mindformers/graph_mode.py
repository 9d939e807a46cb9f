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
"""`parallel_config.auto_tp: true` in MindFormers' graph-mode configurations: read, planned and set without user code.

MindFormers checks that section against a fixed list of keys, turns it into an object, and builds the network by its
register. These three functions are wrapped when `import mindformers` first calls this package.
"""
import functools
import sys
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

from mindspore import log
from mindspore.communication import GlobalComm, get_rank

from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.planner import plan as make_plan
from hyper_parallel.graph.strategies import has_strategy, to_mindspore_strategies
from hyper_parallel.integrations.mindformers.switch import SECTION, positive_size, read_words

SWITCH, WORDS = "auto_tp", "auto_tp_config"
# Sizes of the section that mean other parallelisms; with any of them the plan's mesh would not be the job's.
_OTHER_SIZES = ("context_parallel", "expert_parallel", "pipeline_stage")
_MODULES = ("mindformers.tools.register.template", "mindformers.tools.register.register",
            "mindformers.modules.transformer.transformer")


@dataclass(frozen=True)
class GraphSwitch:
    """The switch of one graph-mode configuration.

    Args:
        tp: `model_parallel`.
        dp: `data_parallel`.
        sequence_parallel: `use_seq_parallel`.
        options: keyword arguments for the planner.
        report: file for the plan as JSON; the strategies go beside it, into `<name>.strategies.json`.
    """

    tp: int
    dp: int
    sequence_parallel: bool = False
    options: Dict[str, Any] = field(default_factory=dict)
    report: Optional[str] = None


def read_graph_switch(section: Mapping[str, Any]) -> Optional[GraphSwitch]:
    """The switch of a section `parallel_config`, or None where it is off.

    Raises:
        ValueError: the switch is no boolean, a size is no positive number, another parallelism is asked for, or
            `auto_tp_config` holds what the planner does not know; the message names the key.
    """
    if not isinstance(section.get(SWITCH, False), bool):
        raise ValueError(f"{SECTION}.{SWITCH} is {section[SWITCH]!r}: write true or false")
    if not section.get(SWITCH, False):
        if section.get(WORDS):
            raise ValueError(f"{SECTION}.{WORDS} is given, but {SECTION}.{SWITCH} is not true: set it, or take {WORDS} "
                             "out")
        return None
    for key in ("data_parallel", "model_parallel", *_OTHER_SIZES):
        size = positive_size(section, key, 1)
        if key in _OTHER_SIZES and size != 1:
            raise ValueError(f"{SECTION}.{key} is {size}: with {SECTION}.{SWITCH} only data_parallel and "
                             "model_parallel may be larger than 1 in this version")
    words = section.get(WORDS) or {}
    sequence_parallel = bool(section.get("use_seq_parallel", False))
    options = read_words(words, section.get("model_parallel", 1), sequence_parallel)
    return GraphSwitch(section.get("model_parallel", 1), section.get("data_parallel", 1), sequence_parallel, options,
                       words.get("report"))


def plan_network(network, switch: GraphSwitch):
    """Plan a network that MindFormers has built, and set the strategies if it has none of its own.

    MindFormers' own networks come with strategies written by hand; a second hand in the same graph would contradict
    them, so that for these the plan is a report.

    Returns:
        GraphStrategies, or None where the network keeps its own.

    Raises:
        ValueError: the plan refuses the network, or graph mode cannot express it.
    """
    # an inventory, not the Cell: no head count changes in graph mode, so that none has to be found
    plan = make_plan(take_inventory(network), switch.tp, sequence_parallel=switch.sequence_parallel, **switch.options)
    own = sum(has_strategy(primitive) for _, cell in network.cells_and_names()
              for primitive in cell._primitives.values() if primitive is not None)
    strategies = None
    if own == 0:
        strategies = to_mindspore_strategies(network, plan, {"dp": switch.dp, "tp": switch.tp})
    if not GlobalComm.INITED or get_rank() == 0:
        print(plan.explain(), flush=True)
        if own:
            log.warning(f"{type(network).__name__} brings strategies for {own} operators; they stay, and the plan of "
                        f"{SECTION}.{SWITCH} is a report")
        if switch.report:
            file = plan.save(switch.report)
            if strategies is not None:
                strategies.save(file.with_suffix(".strategies.json"))
    return strategies


def install():
    """Wrap what MindFormers calls; does nothing while MindFormers is not there, or when it has been done."""
    modules = [sys.modules.get(name) for name in _MODULES]
    if None in modules or hasattr(modules[0].ConfigTemplate.apply_template, "_hyper_parallel"):
        return
    template, register, transformer = modules
    template.ConfigTemplate.apply_template = _wrap_apply_template(template.ConfigTemplate.apply_template)
    register.MindFormerRegister.get_instance_from_cfg = _wrap_get_instance(
        register.MindFormerRegister.get_instance_from_cfg, register.MindFormerModuleType.MODELS)
    _wrap_parallel_config(transformer.TransformerOpParallelConfig)


def _wrap_apply_template(original):
    @functools.wraps(original)
    def apply_template(config):
        section = config.get(SECTION)
        if not isinstance(section, Mapping):
            return original(config)
        read_graph_switch(section)
        ours = {key: section[key] for key in (SWITCH, WORDS) if key in section}
        config[SECTION] = {key: value for key, value in section.items() if key not in ours}
        result = original(config)
        config[SECTION].update(ours)
        return result

    apply_template._hyper_parallel = True
    return staticmethod(apply_template)


def _wrap_parallel_config(kind):
    """The object that the section becomes carries the switch along, through its dict form too."""
    init, forms = kind.__init__, {name: getattr(kind, name) for name in ("to_dict", "to_diff_dict")}

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        ours = {key: kwargs.pop(key) for key in (SWITCH, WORDS) if key in kwargs}
        switch = read_graph_switch({**kwargs, **ours})
        init(self, *args, **kwargs)
        self.auto_tp_words, self.auto_tp_switch = ours, switch

    kind.__init__ = __init__
    for name, form in forms.items():
        setattr(kind, name, lambda self, form=form: {**form(self), **getattr(self, "auto_tp_words", {})})


def _wrap_get_instance(original, models):
    @functools.wraps(original)
    def get_instance_from_cfg(cfg, module_type=None, default_args=None, **kwargs):
        given = {} if module_type is None else {"module_type": module_type}
        built = original(cfg, **given, default_args=default_args, **kwargs)
        if module_type == models:
            switch = _switch_of(default_args or {})
            if switch is not None:
                plan_network(built, switch)
        return built
    return staticmethod(get_instance_from_cfg)


def _switch_of(arguments: Mapping[str, Any]) -> Optional[GraphSwitch]:
    """The switch among what a network is built with: in its configuration, or beside it."""
    section = arguments.get("parallel_config")
    if section is None:
        section = getattr(arguments.get("config"), "parallel_config", None)
    if isinstance(section, Mapping):
        return read_graph_switch(section)
    return getattr(section, "auto_tp_switch", None)
