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
"""Twins of a model: the same tree under other names, to see what is decided by structure and what by names."""
from typing import Dict, List, Tuple

GREEK = ("alpha", "beta", "gamma_", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda_", "mu", "nu",
         "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon", "phi_", "chi", "psi", "omega")
_OWN_NAMES = ("weight", "bias", "embedding_table")


def renamed(record: Dict, prefix: str, instead: str = "") -> Tuple[Dict, Dict[str, str]]:
    """The same tree with `prefix` in front, or `instead` replaced by it.

    Args:
        record: `{"config": …, "parameters": {name: …}}`; not modified.
        prefix: for example `model.language_model.`.
        instead: a leading part that it replaces where a name begins with it.

    Returns:
        (twin, `{old name: new name}`).
    """
    names = {name: prefix + (name[len(instead):] if instead and name.startswith(instead) else name)
             for name in record["parameters"]}
    return {**record, "parameters": {names[name]: facts for name, facts in record["parameters"].items()}}, names


def obfuscated(record: Dict, containers: bool = False) -> Tuple[Dict, Dict[str, str]]:
    """The same tree with nonsense for the names of its linears, norms and bare parameters, in order of appearance.

    Args:
        record: `{"config": …, "parameters": {name: …}}`; not modified.
        containers: the names of the modules around them become nonsense too; numbers stay.

    Returns:
        (twin, `{old name: new name}`).
    """
    chosen: Dict[str, Dict[str, str]] = {}
    names = {}
    for name in record["parameters"]:
        segments = name.split(".")
        at = len(segments) - 1
        if segments[at] in _OWN_NAMES and at > 0:
            at -= 1
        while at > 0 and segments[at].isdigit():
            at -= 1
        new: List[str] = list(segments)
        for position in range(at + 1) if containers else (at,):
            if segments[position].isdigit() or segments[position] in _OWN_NAMES:
                continue
            # one word for one name below one module, whatever the layer's number
            below = ".".join("*" if segment.isdigit() else segment for segment in segments[:position])
            here = chosen.setdefault(below, {})
            new[position] = here.setdefault(segments[position], GREEK[len(here) % len(GREEK)])
        names[name] = ".".join(new)
    assert len(set(names.values())) == len(names), "two parameters were given one name"
    return {**record, "parameters": {names[name]: facts for name, facts in record["parameters"].items()}}, names
