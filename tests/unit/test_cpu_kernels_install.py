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
"""When the stand-ins are installed, that they replace what they say, and that they can be taken out without a trace."""
import inspect
import subprocess
import sys

import pytest

import mindspore as ms
from mindspore import Tensor, mint, nn

from hyper_parallel.platform import cpu_kernels
from hyper_parallel.platform.cpu_kernels import installer
from hyper_parallel.platform.cpu_kernels.dispatch import REPLACEMENTS
from cpu_kernels_checks import numbers

TARGETS = [target for replacement in REPLACEMENTS for target in replacement.targets]


@pytest.fixture(autouse=True)
def put_back():
    """Leaves the stand-ins installed, as `import hyper_parallel` does on this machine."""
    yield
    cpu_kernels.install()


def held(target):
    """(what the name gives, whether its owner itself holds it)."""
    owner, name = installer._resolve(target)  # pylint: disable=protected-access
    return getattr(owner, name), name in vars(owner)


def test_every_target_exists_in_this_mindspore():
    resolve = installer._resolve  # pylint: disable=protected-access
    missing = [target for target in TARGETS if resolve(target)[0] is None]
    assert not missing


def test_no_name_has_two_stand_ins():
    assert len(TARGETS) == len(set(TARGETS))


def test_uninstall_restores_every_original():
    cpu_kernels.uninstall()
    before = {target: held(target) for target in TARGETS}
    assert not cpu_kernels.installed()
    cpu_kernels.install()
    assert cpu_kernels.installed()
    changed = {target: held(target) for target in TARGETS}
    assert all(changed[target][0] is not before[target][0] for target in TARGETS)
    cpu_kernels.uninstall()
    after = {target: held(target) for target in TARGETS}
    for target in TARGETS:
        assert after[target][1] == before[target][1], target
        # A method of the C++ base class is made anew at every access.
        assert after[target][0] is before[target][0] or after[target][0] == before[target][0], target
    with pytest.raises(RuntimeError, match="Arange"):
        mint.arange(3).asnumpy()


def test_installing_and_uninstalling_twice_changes_nothing():
    cpu_kernels.install()
    first = {target: held(target)[0] for target in TARGETS}
    cpu_kernels.install()
    assert all(held(target)[0] is first[target] for target in TARGETS)
    cpu_kernels.uninstall()
    original = mint.arange
    cpu_kernels.uninstall()
    assert mint.arange is original


def test_the_graph_compiler_finds_the_original():
    """It unwraps functions before it parses them."""
    wrapped = mint.split
    cpu_kernels.uninstall()
    assert inspect.unwrap(wrapped) is mint.split


def test_graph_mode_is_as_without_stand_ins():
    class Net(nn.Cell):
        """Split, matrix product and sum, as the graph compiler takes them."""

        def construct(self, x):
            first, second = mint.split(x, 2, 1)
            return mint.sum(mint.matmul(first, mint.transpose(second, 0, 1)))
    x = Tensor(numbers(3, 4))
    expected = Net()(x).asnumpy()
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        graph = Net()(x).asnumpy()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert abs(graph - expected) < 1e-5


@pytest.mark.parametrize("target, npu, wanted", [
    ("CPU", False, True), ("CPU", True, True), ("Ascend", False, False), ("Ascend", True, False),
    ("GPU", False, True), ("GPU", True, False)])
def test_when_they_are_needed(monkeypatch, target, npu, wanted):
    monkeypatch.setattr(cpu_kernels, "_device_target", lambda: target)
    monkeypatch.setattr(cpu_kernels, "_npu_present", lambda: npu)
    cpu_kernels.uninstall()
    assert cpu_kernels.maybe_install() is wanted
    assert cpu_kernels.installed() is wanted


def test_this_machine():
    assert cpu_kernels._device_target() == "CPU"  # pylint: disable=protected-access
    assert cpu_kernels._npu_present() in (True, False)  # pylint: disable=protected-access


def test_nothing_is_loaded_when_the_target_is_ascend():
    script = (
        "import sys, mindspore\n"
        "query = mindspore.get_context\n"
        "mindspore.get_context = lambda key: 'Ascend' if key == 'device_target' else query(key)\n"
        "import hyper_parallel\n"
        "from hyper_parallel.platform import cpu_kernels\n"
        "assert not cpu_kernels.installed() and not cpu_kernels.maybe_install()\n"
        "loaded = [name for name in sys.modules if name.startswith(cpu_kernels.__name__ + '.')]\n"
        "assert not [name for name in loaded if not name.endswith('.gradients')], loaded\n")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_names_this_mindspore_does_not_have_are_left_out():
    resolve = installer._resolve  # pylint: disable=protected-access
    assert resolve("mindspore.mint:no_such_function")[0] is None
    assert resolve("mindspore.no_such_module:function")[0] is None
    assert resolve("mindspore:Tensor.no_such_method")[0] is None
    assert resolve("mindspore:NoSuchClass.method")[0] is None


def test_install_skips_a_missing_name(monkeypatch):
    cpu_kernels.uninstall()
    monkeypatch.setattr(installer, "REPLACEMENTS", [REPLACEMENTS[0]._replace(targets=("mindspore.mint:missing",))])
    cpu_kernels.install()
    assert not cpu_kernels.installed()
