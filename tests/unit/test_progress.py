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
"""The progress callback: what it shows on rank 0, and the record it leaves."""
import io
import json
from types import SimpleNamespace

import mindspore as ms
import pytest

pytest.importorskip("mindformers")
from hyper_parallel.integrations.mindformers.progress import TrainingProgress, as_float, versions  # noqa: E402
from hyper_parallel.version import __version__  # noqa: E402


class Config(SimpleNamespace):
    """As much of MindFormers' TrainConfig as the callback reads."""

    def to_dict(self):
        return {"training": vars(self.training)}


def config():
    return Config(training=SimpleNamespace(seed=7, global_batch_size=4), model=SimpleNamespace(seq_length=16),
                  parallelism=SimpleNamespace(tensor_parallel=2, data_parallel=3))


def drive(progress, losses, start=0, schedule=None):
    """Plays a training of `len(losses)` steps to the callback, as MindFormers' trainer would."""
    state = SimpleNamespace(global_step=start, max_steps=start + len(losses))
    progress.on_train_begin(config(), state)
    for loss in losses:
        progress.on_step_begin(config(), state)
        state.global_step += 1
        progress.on_step_end(config(), state, loss=loss, grad_norm=ms.Tensor(0.5, ms.float32), lr_scheduler=schedule)
    progress.on_train_end(config(), state)


def test_bar_shows_loss_tokens_per_second_and_lr():
    stream = io.StringIO()
    drive(TrainingProgress(stream=stream), [ms.Tensor(3.25, ms.float32), ms.Tensor(2.5, ms.float32)],
          schedule=lambda step: ms.Tensor(0.001, ms.float32) * (int(step) + 1))
    last = stream.getvalue().split("\r")[-1]
    assert "2/2" in last and "loss=2.5000" in last and "tokens/s=" in last and "lr=2.00e-03" in last


def test_record(tmp_path):
    path = tmp_path / "new" / "run.json"
    progress = TrainingProgress(str(path), stream=io.StringIO())
    drive(progress, [3.0, 2.0, float("nan")], schedule=1e-3)
    record = json.loads(path.read_text())
    assert record["loss"] == [3.0, 2.0, None]
    assert record["grad_norm"] == [0.5] * 3 and record["lr"] == [1e-3] * 3
    assert (record["seed"], record["tp"], record["dp"]) == (7, 2, 3)
    assert record["config"] == {"training": {"seed": 7, "global_batch_size": 4}}
    assert record["tokens_per_second"] > 0 and record["seconds"] >= 0
    assert record["versions"]["hyper-parallel"] == __version__
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


def test_other_ranks_show_and_write_nothing(tmp_path):
    stream = io.StringIO()
    progress = TrainingProgress(str(tmp_path / "run.json"), rank=1, stream=stream)
    drive(progress, [3.0])
    assert stream.getvalue() == "" and not list(tmp_path.iterdir())


def test_resumed_training_starts_its_bar_where_it_left_off():
    stream = io.StringIO()
    drive(TrainingProgress(stream=stream), [3.0], start=9)
    assert "9/10" in stream.getvalue() and "10/10" in stream.getvalue()


def test_stage_without_a_loss_is_recorded_as_none(tmp_path):
    path = tmp_path / "run.json"
    drive(TrainingProgress(str(path), stream=io.StringIO()), [None])
    assert json.loads(path.read_text())["loss"] == [None]


@pytest.mark.parametrize("value, number", [
    (None, None), (2, 2.0), (ms.Tensor([1.5], ms.float32), 1.5),
    (SimpleNamespace(to_local=lambda: ms.Tensor(0.25, ms.float32)), 0.25),
])
def test_numbers_of_every_kind(value, number):
    assert as_float(value) == number


def test_versions_of_what_is_not_installed_are_none(monkeypatch):
    def missing(name):
        raise __import__("importlib.metadata").metadata.PackageNotFoundError(name)

    monkeypatch.setattr("hyper_parallel.integrations.mindformers.progress.metadata.version", missing)
    assert versions()["mindspore"] is None
