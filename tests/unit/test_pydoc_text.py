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
"""The real text of the main job: deterministic, and cut so that the data order does not depend on dp."""
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import pydoc_text  # noqa: E402

needs_tokenizers = pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None, reason="needs tokenizers")


def test_documentation_is_a_few_hundred_thousand_characters_of_english():
    texts = pydoc_text.documentation()
    assert sum(map(len, texts)) > 300_000
    assert any("the" in text for text in texts)


@needs_tokenizers
def test_tokenizer_has_the_size_asked_for_and_gives_the_text_back(tmp_path):
    texts = pydoc_text.documentation()[:20]
    tokenizer = pydoc_text.load_tokenizer(tmp_path, texts, 500)
    assert tokenizer.get_vocab_size() == 500
    assert tokenizer.decode(tokenizer.encode(texts[3]).ids) == texts[3]
    assert tokenizer.token_to_id(pydoc_text.PAD) == pydoc_text.PAD_ID
    stream = pydoc_text.token_stream(tokenizer, texts)
    assert stream.dtype == np.int32 and stream.max() < 500 and pydoc_text.PAD_ID not in stream


@needs_tokenizers
def test_two_processes_train_the_same_tokenizer(tmp_path):
    code = (f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import pydoc_text as p; "
            "p.load_tokenizer(sys.argv[1], p.documentation(), 600)")
    for name, hash_seed in (("a", "1"), ("b", "2")):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True,
                       env={"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": hash_seed})
    (first,), (second,) = (list((tmp_path / name).iterdir()) for name in "ab")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


@needs_tokenizers
def test_tokenizer_is_cached_by_text_and_size_and_leaves_no_partial_file(tmp_path):
    pydoc_text.load_tokenizer(tmp_path, ["one two three " * 50], 262)
    pydoc_text.load_tokenizer(tmp_path, ["one two three " * 50], 262)
    assert len(list(tmp_path.iterdir())) == 1
    pydoc_text.load_tokenizer(tmp_path, ["four five six " * 50], 262)
    assert len(list(tmp_path.iterdir())) == 2
    assert not list(tmp_path.glob("*.tmp"))


@needs_tokenizers
@pytest.mark.parametrize("vocab_size, said", [(100, "at least 258"), (5000, "yields only")])
def test_impossible_vocabulary_is_refused(vocab_size, said):
    with pytest.raises(ValueError, match=said):
        pydoc_text.train_tokenizer(["a short text"], vocab_size)


def test_windows_overlap_by_one_token_and_depend_on_the_seed_only():
    stream = np.arange(101, dtype=np.int32)
    windows = pydoc_text.cut_windows(stream, 10, seed=7)
    assert windows.shape == (10, 11)
    assert sorted(windows[:, 0]) == list(range(0, 100, 10))
    assert (np.diff(windows, axis=1) == 1).all()
    assert (windows == pydoc_text.cut_windows(stream, 10, seed=7)).all()
    assert (windows != pydoc_text.cut_windows(stream, 10, seed=8)).any()


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_the_ranks_shares_of_a_step_are_the_global_batch(dp_size):
    windows = np.arange(9)[:, None] * 100 + np.arange(6)  # nine windows: the ninth does not fill a batch
    shares = [pydoc_text.RankShare(windows, 4, dp_size, rank) for rank in range(dp_size)]
    local = 4 // dp_size
    for step in range(2):
        seen = [share[i] for share in shares for i in range(step * local, (step + 1) * local)]
        for (inputs, labels), window in zip(seen, windows[step * 4:step * 4 + 4], strict=True):
            assert (inputs == window[:-1]).all() and (labels == window[1:]).all()
    assert [len(share) for share in shares] == [8 // dp_size] * dp_size


@pytest.mark.parametrize("count, batch, dp_size, said", [
    (8, 4, 3, "global_batch_size is 4, which data_parallel 3"),
    (3, 4, 1, "only 3 windows"),
])
def test_impossible_batches_are_refused(count, batch, dp_size, said):
    with pytest.raises(ValueError, match=said):
        pydoc_text.RankShare(np.zeros((count, 5), np.int32), batch, dp_size)


def test_text_too_short_for_a_window_is_refused():
    with pytest.raises(ValueError, match="seq_length is 10"):
        pydoc_text.cut_windows(np.zeros(10, np.int32), 10, seed=0)


@needs_tokenizers
def test_dataset_gives_inputs_and_labels_shifted_by_one(tmp_path):
    dataset = pydoc_text.build_dataset(tmp_path, vocab_size=500, seq_len=64, global_batch_size=8, seed=1, dp_size=2,
                                       dp_rank=1)
    batch = next(dataset.create_dict_iterator(output_numpy=True, num_epochs=1))
    assert set(batch) == {"input_ids", "labels"}
    assert batch["input_ids"].shape == batch["labels"].shape == (4, 64)
    assert batch["input_ids"].dtype == np.int32
    assert (batch["input_ids"][:, 1:] == batch["labels"][:, :-1]).all()
