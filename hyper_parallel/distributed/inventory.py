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
"""What a model is made of: one structure, read from a Cell, a checkpoint folder, or a JSON record."""
import functools
import inspect
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from hyper_parallel.distributed.model_facts import ModelFacts
from hyper_parallel.distributed.tensor_parallel import words

# op layouts: how a 2-D weight is stored
OUT_IN, IN_OUT, TABLE = "[out, in]", "[in, out]", "table"
_IN_OUT_CLASSES = ("Conv1D",)
_NORM_WORDS = ("norm",)
_TABLE_WORDS = ("embedding",)


class ParameterRecord(NamedTuple):
    """One parameter, before anything is decided about it.

    Args:
        path: dotted path in the model, for example `model.layers.0.mlp.up_proj.weight`.
        shape: whole shape.
        dtype: name of the dtype.
        owner_class: class of the module that holds it; "" where it is not known (a folder).
        layout: `[out, in]`, `[in, out]` or `table`, None where it is not known.
        aliases: other paths of the same object.
        trainable: requires a gradient; False for frozen parameters.
    """

    path: str
    shape: Tuple[int, ...]
    dtype: str = "float32"
    owner_class: str = ""
    layout: Optional[str] = None
    aliases: Tuple[str, ...] = ()
    trainable: bool = True

    @property
    def owner(self) -> str:
        """Path of the module that holds the parameter; "" for the root."""
        return self.path.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """The parameter's own name: `weight`, `bias`, `gamma`, …"""
        return self.path.rpartition(".")[2]

    @property
    def is_norm_owned(self) -> bool:
        """The owner's class is a norm."""
        return any(word in self.owner_class.lower() for word in _NORM_WORDS)

    @property
    def is_table(self) -> bool:
        """The owner's class is an embedding."""
        return self.layout == TABLE


@dataclass(frozen=True)
class ModuleRecord:
    """One module of a Cell.

    Args:
        path: dotted path; "" for the root.
        class_name: name of its class.
        arguments: names of the arguments of its forward, in order.
        counts: its plain integer attributes, by name.
    """

    path: str
    class_name: str
    arguments: Tuple[str, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Inventory:
    """Parameters, modules and configuration of a model.

    `modules` is empty for a folder or a JSON record, which have no forward.
    """

    parameters: Dict[str, ParameterRecord]
    modules: Dict[str, ModuleRecord] = field(default_factory=dict)
    facts: ModelFacts = ModelFacts()
    source: str = "record"

    def facts_of(self, path: str) -> ModelFacts:
        """The configuration that speaks for a path: a vision or audio tower has its own."""
        if self.facts.tower is not None and words.vision_segment(path.lower().split(".")) is not None:
            return self.facts.tower
        return self.facts


def take_inventory(model: Any, config: Any = None) -> Inventory:
    """Read a model, whatever form it has.

    Args:
        model: a Cell; a folder with `config.json` and `*.safetensors`; a JSON file or dict
            `{"config": …, "parameters": {name: {"shape": …, "dtype": …}}}`; an Inventory is returned as it is.
        config: configuration to use instead of the one the model carries.

    Raises:
        ValueError: nothing of these; the message lists them.

    Examples:
        >>> take_inventory({"config": {"hidden_size": 64}, "parameters": {"lm_head.weight": {"shape": [128, 64]}}})
    """
    if isinstance(model, Inventory):
        return model
    if isinstance(model, Mapping):
        return _from_record(model, config)
    if isinstance(model, (str, Path)):
        path = Path(model)
        if path.is_dir():
            return _from_folder(path, config)
        if path.suffix == ".json" and path.is_file():
            return _from_record(_read_json(path), config)
        raise ValueError(f"no model at {str(path)!r}: give a folder with config.json and *.safetensors, or a JSON "
                         'record {"config": …, "parameters": {name: {"shape": …}}}')
    if hasattr(model, "cells_and_names") and hasattr(model, "parameters_and_names"):
        return _from_cell(model, config)
    raise ValueError(f"cannot plan a {type(model).__name__}: give a Cell, a folder, a JSON record or an Inventory")


def _read_json(path: Path) -> Mapping:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} is no JSON: {error}") from error
    if not isinstance(data, Mapping):
        raise ValueError(f"{str(path)!r} holds a {type(data).__name__}, where an object {{…}} is needed")
    return data


def _from_record(record: Mapping, config: Any) -> Inventory:
    if "parameters" not in record:
        raise ValueError(f"an inventory record needs the key 'parameters'; it has {', '.join(record) or 'none'}")
    parameters = {}
    for path, facts in record["parameters"].items():
        if not isinstance(facts, Mapping) or "shape" not in facts:
            raise ValueError(f"parameter {path!r} of the inventory record has no 'shape'")
        parameters[path] = ParameterRecord(path, tuple(facts["shape"]), str(facts.get("dtype", "float32")))
    return Inventory(parameters, facts=ModelFacts.from_config(config or record.get("config") or {}))


def _from_folder(folder: Path, config: Any) -> Inventory:
    """Only headers are read, so that a checkpoint of many gigabytes takes milliseconds."""
    files = _weight_files(folder)
    if config is None:
        config_file = folder / "config.json"
        if not config_file.is_file():
            raise ValueError(f"folder {str(folder)!r} holds no config.json; pass config=")
        config = _read_json(config_file)
    parameters = {}
    for file in files:
        for path, facts in _safetensors_header(file).items():
            parameters[path] = ParameterRecord(path, tuple(facts["shape"]), facts["dtype"])
    return Inventory(parameters, facts=ModelFacts.from_config(config), source="folder")


def _weight_files(folder: Path) -> List[Path]:
    """The files that hold the weights: those that the index names, else every one."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ValueError(f"folder {str(folder)!r} holds no *.safetensors file")
        return files
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise ValueError(f"{str(index)!r} has no 'weight_map' that names the files of the weights")
    named = sorted(set(weight_map.values()))
    missing = [name for name in named if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"folder {str(folder)!r} lacks {', '.join(missing)}, which its index names")
    return [folder / name for name in named]


def _safetensors_header(file: Path) -> Dict[str, Dict]:
    # https://github.com/huggingface/safetensors: 8 bytes little-endian header size, then JSON
    with open(file, "rb") as stream:
        size, = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    return header


def _layout_of(cell, leaf: str, shape) -> Optional[str]:
    class_name = type(cell).__name__.lower()
    if len(shape) < 2:
        return None
    if any(word in class_name for word in _TABLE_WORDS) or leaf == "embedding_table":
        return TABLE
    if type(cell).__name__ in _IN_OUT_CLASSES or getattr(cell, "transpose_b", True) is False:
        return IN_OUT
    sizes = [getattr(cell, key, None) for key in ("out_channels", "out_features", "output_size")]
    if shape[0] in sizes:
        return OUT_IN
    return None


def _from_cell(cell, config: Any) -> Inventory:
    parameters: Dict[str, ParameterRecord] = {}
    modules: Dict[str, ModuleRecord] = {}
    path_of: Dict[int, str] = {}
    aliases: Dict[str, list] = {}
    for module_path, module in cell.cells_and_names():
        modules[module_path] = _module_record(module_path, module)
        for leaf, parameter in module._params.items():
            if parameter is None:
                continue
            path = f"{module_path}.{leaf}" if module_path else leaf
            first = path_of.setdefault(id(parameter), path)
            if first != path:
                aliases.setdefault(first, []).append(path)
                continue
            shape = tuple(parameter.shape)
            parameters[path] = ParameterRecord(
                path, shape, str(parameter.dtype).lower(), type(module).__name__, _layout_of(module, leaf, shape),
                trainable=bool(parameter.requires_grad))
    for path, others in aliases.items():
        record = parameters[path]
        parameters[path] = ParameterRecord(record.path, record.shape, record.dtype, record.owner_class, record.layout,
                                           tuple(others), record.trainable)
    return Inventory(parameters, modules, ModelFacts.from_config(config or _config_of(cell) or {}), "cell")


def _module_record(path: str, module) -> ModuleRecord:
    arguments = arguments_of(module)
    counts = {name: value for name, value in vars(module).items()
              if isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_")}
    return ModuleRecord(path, type(module).__name__, arguments, counts)


def arguments_of(module) -> Tuple[str, ...]:
    """Names of the arguments of a module's forward, in order."""
    forward = module.construct
    function = getattr(forward, "__func__", None)
    if function is None:
        return _positional(forward)
    return _positional(function)[1:]


@functools.lru_cache(maxsize=None)
def _positional(function) -> Tuple[str, ...]:
    return tuple(name for name, argument in inspect.signature(function).parameters.items()
                 if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD))


def _config_of(cell) -> Any:
    """The configuration with resolved sizes where there is one (MindFormers keeps it on inner modules), else the first
    one that has sizes at all."""
    with_sizes = [config for config in (getattr(module, "config", None) for _, module in cell.cells_and_names())
                  if config is not None and ModelFacts.from_config(config).hidden_size]
    resolved = [config for config in with_sizes if hasattr(config, "kv_channels")]
    return (resolved or with_sizes or [None])[0]
