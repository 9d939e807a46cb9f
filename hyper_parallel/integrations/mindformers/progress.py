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
"""A MindFormers callback: a progress bar on rank 0, and the loss of every step on record."""
import json
import math
import os
import platform
import time
from importlib import metadata
from pathlib import Path

import mindspore as ms
from mindformers.pynative.callback.callback import TrainerCallback
from tqdm import tqdm

from hyper_parallel.version import __version__


def as_float(value):
    """A Python float from a Tensor, a distributed Tensor or a number; None stays None."""
    if value is None:
        return None
    if hasattr(value, "to_local"):
        value = value.to_local()
    return float(value.asnumpy().item()) if hasattr(value, "asnumpy") else float(value)


def versions():
    """Versions of whatever decides the numbers of a run."""
    found = {"python": platform.python_version(), "hyper-parallel": __version__}
    for name in ("mindspore", "mindformers", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


class TrainingProgress(TrainerCallback):
    """Shows loss, tokens/s and learning rate while a MindFormers trainer runs, and keeps a record of the run.

    Both happen on rank 0 only; on other ranks the callback does nothing.

    Args:
        record (str, optional): Where to write the record when training ends, as JSON: `config`, `seed`, `tp`, `dp`,
            `loss`, `grad_norm` and `lr` (one number a step), `seconds`, `tokens_per_second` (steps after the first)
            and `versions`. None writes nothing.
        rank (int): The rank of this process.
        stream (file, optional): Where the bar goes; None is the standard error stream.
    """

    def __init__(self, record=None, rank=0, stream=None):
        super().__init__()
        self.path = Path(record) if record else None
        self.shown = rank == 0
        self.stream = stream
        self.bar = None
        self.history = {"loss": [], "grad_norm": [], "lr": []}
        self.started = None
        self.first_step_done = None

    def on_train_begin(self, args, state, **kwargs):
        """Opens the bar at the step that training starts from."""
        if not self.shown:
            return
        self.started = time.perf_counter()
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step",
                        dynamic_ncols=True, file=self.stream)

    def on_step_end(self, args, state, **kwargs):
        """Moves the bar and notes the step's loss, gradient norm and learning rate."""
        if not self.shown:
            return
        loss, grad_norm = as_float(kwargs.get("loss")), as_float(kwargs.get("grad_norm"))
        # The optimizer takes the schedule's value before it counts the step.
        schedule = kwargs.get("lr_scheduler")
        lr = as_float(schedule(ms.Tensor(state.global_step - 1, ms.int32)) if callable(schedule) else schedule)
        for name, value in (("loss", loss), ("grad_norm", grad_norm), ("lr", lr)):
            self.history[name].append(value)
        if self.first_step_done is None:
            self.first_step_done = time.perf_counter()
        shown = {name: f"{value:{form}}" for name, value, form in
                 (("loss", loss, ".4f"), ("tokens/s", self._tokens_per_second(args), ",.0f"), ("lr", lr, ".2e"))
                 if value is not None}
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(1)

    def on_train_end(self, args, state, **kwargs):
        """Closes the bar and writes the record."""
        if not self.shown:
            return
        self.bar.close()
        if self.path:
            self._write(self.summary(args))

    def summary(self, args):
        """The record as plain data."""
        parallelism = args.parallelism
        return {
            "config": args.to_dict(),
            "seed": args.training.seed,
            "tp": parallelism.tensor_parallel,
            "dp": getattr(parallelism, "data_parallel", 1),
            **self.history,
            "seconds": round(time.perf_counter() - self.started, 3),
            "tokens_per_second": self._tokens_per_second(args),
            "versions": versions(),
        }

    def _tokens_per_second(self, args):
        """Tokens of all ranks a second since the end of the first step, which also pays for start-up; None before."""
        steps = len(self.history["loss"]) - 1
        seq_length = getattr(args.model, "seq_length", None)
        if steps < 1 or not seq_length:
            return None
        seconds = time.perf_counter() - self.first_step_done
        return round(steps * args.training.global_batch_size * seq_length / max(seconds, 1e-9), 1)

    def _write(self, record):
        """Writes a whole file or none. A loss that is not finite is written as null: JSON has no other word for it."""
        for name in self.history:
            record[name] = [value if value is not None and math.isfinite(value) else None for value in record[name]]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        partial.write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")
        os.replace(partial, self.path)
