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
"""One way to refuse what MindFormers imports by name but this version does not do yet.

MindFormers imports these names when it is itself imported, so they must exist; asking one of them to work is an error
that says what is supported.
"""

SUPPORTED = "tensor parallelism (auto_tp), data parallelism in replicas and shards (FSDP, HSDP), and both together"


def refuse(feature: str, config_key: str):
    """Raise the error for a feature of a later version.

    Args:
        feature: what was asked for, in the field's own words.
        config_key: the configuration key that asks for it.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"hyper_parallel {feature} is not available in this version; supported: {SUPPORTED}. "
        f"Turn off {config_key} in the configuration.")
