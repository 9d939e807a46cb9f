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
"""MindFormers' hard-coded down-casts in float32, where numbers are to be compared exactly."""
import contextlib
import types

import mindspore


@contextlib.contextmanager
def float32_casts():
    """MindFormers casts q/k/v to float16 and the head's input to bfloat16; inside, both names mean float32."""
    from mindformers.pynative.base_models.gpt import gpt_model
    from mindformers.pynative.transformers import attention

    def with_float32(module):
        names = {name: getattr(module, name) for name in dir(module) if not name.startswith("__")}
        return types.SimpleNamespace(**{**names, "float16": mindspore.float32, "bfloat16": mindspore.float32})

    kept = gpt_model.dtype, attention.mstype
    gpt_model.dtype, attention.mstype = with_float32(gpt_model.dtype), with_float32(attention.mstype)
    try:
        yield
    finally:
        gpt_model.dtype, attention.mstype = kept
