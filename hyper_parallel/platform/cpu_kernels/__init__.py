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
"""Operators that MindSpore's CPU build lacks, for running MindFormers' PyNative models without an Ascend card.

Only the two questions "is it needed" and "is it installed" live here; the stand-ins themselves are loaded by the
first `install`, so that a machine with Ascend cards never loads them.
"""
import glob
import sys

import mindspore

__all__ = ["install", "installed", "maybe_install", "uninstall"]

_INSTALLER = __name__ + ".installer"


def _npu_present() -> bool:
    return bool(glob.glob("/dev/davinci[0-9]*"))


def _device_target() -> str:
    return mindspore.get_context("device_target")


def needed() -> bool:
    """True if the device target is CPU, or could only become CPU: no NPU on the machine and the target not Ascend."""
    target = _device_target()
    return target == "CPU" or (target != "Ascend" and not _npu_present())


def maybe_install() -> bool:
    """Installs the stand-ins if they are needed; returns whether they are in place."""
    if needed():
        install()
    return installed()


def install() -> None:
    """Puts the stand-ins in place, whatever the device target; a second call does nothing."""
    from hyper_parallel.platform.cpu_kernels import installer as module  # pylint: disable=import-outside-toplevel
    module.install()


def installed() -> bool:
    """Whether the stand-ins are in place."""
    return _INSTALLER in sys.modules and sys.modules[_INSTALLER].installed()


def uninstall() -> None:
    """Restores every original; a second call does nothing."""
    if installed():
        sys.modules[_INSTALLER].uninstall()
