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
"""A Parameter that is a DTensor to its owner and a plain local tensor to the forward."""
import functools

from mindspore import Parameter, nn

from hyper_parallel.core.dtensor.dispatch import SkipDTensorDispatch
from hyper_parallel.core.dtensor.dtensor import DTensor


def store_as_dtensor(cell, name, mesh, placements, slice_map=None, known=None):
    """Let `cell` hold its parameter `name`, already this rank's part, as a DTensor.

    Optimizers, gradient norms and checkpoints walk the Cell's parameters and find the DTensor; the forward reads the
    attribute and finds the plain local Parameter, a leaf of autograd, with no work per step.

    Args:
        cell (Cell): the owner.
        name: attribute name of the parameter.
        mesh: the mesh of the placements.
        placements: one per axis.
        slice_map: record of the parts where placements cannot say it.
        known: the DTensor that another alias of the same parameter already has.

    Returns:
        The Parameter that is a DTensor.
    """
    _let_cells_move_local_parts()
    local = cell._params[name]
    stored = known if known is not None else Parameter(
        DTensor(local, mesh, placements, slice_map), name=local.name, requires_grad=local.requires_grad)
    # The edges of the module around it and the plan's sums leave the gradient as the parameter lies.
    stored._gradient_is_summed = True
    cell._params[name] = stored
    cell.__dict__[name] = stored.to_local()
    return stored


def restore_plain(cell, name):
    """The inverse of `store_as_dtensor`: the Cell holds its plain local parameter again."""
    stored = cell._params[name]
    cell.__dict__.pop(name, None)
    cell._params[name] = stored.to_local()
    return cell._params[name]


def _let_cells_move_local_parts():
    """`Cell.to_empty` and `Cell.to` compute each parameter's new data with an operator; for a stored DTensor that is
    new data for the local part."""
    if hasattr(nn.Cell._apply, "_hyper_parallel"):
        return
    original = nn.Cell._apply

    @functools.wraps(original)
    def apply_to_local_parts(self, fn, recurse=True):
        with SkipDTensorDispatch():
            return original(self, fn, recurse)

    apply_to_local_parts._hyper_parallel = True
    nn.Cell._apply = apply_to_local_parts
