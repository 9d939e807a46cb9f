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
"""Real text without a download: the English documentation that every Python ships, as a MindSpore dataset.

    pydoc_data.topics  ->  byte-pair tokenizer trained on it  ->  one token stream  ->  shuffled windows of seq_len + 1

Legend: N windows, S seq_len, B global_batch_size.
"""
import hashlib
import os
from pathlib import Path
from pydoc_data import topics

import numpy as np

PAD, END_OF_TOPIC = "<pad>", "<eot>"
PAD_ID = 0  # never drawn from the text: MindFormers leaves positions with pad_token_id out of the loss


def documentation():
    """The documentation topics of the running Python, in a fixed order: about 80 texts, 460 thousand characters."""
    return [topics.topics[name] for name in sorted(topics.topics)]


def train_tokenizer(texts, vocab_size):
    """A byte-level BPE tokenizer of exactly `vocab_size` entries; the same texts give the same tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(alphabet) + 2:
        raise ValueError(f"model.vocab_size is {vocab_size}; a byte-level tokenizer needs at least {len(alphabet) + 2}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[PAD, END_OF_TOPIC], initial_alphabet=alphabet,
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    size = tokenizer.get_vocab_size()
    if size != vocab_size:
        raise ValueError(f"model.vocab_size is {vocab_size}, but this text yields only {size} tokens")
    return tokenizer


def load_tokenizer(cache_dir, texts, vocab_size):
    """The tokenizer of these texts from `cache_dir`, trained and stored there first if need be.

    Ranks may race for the file: each writes its own and renames it, so that a reader sees a whole one or none.
    """
    from tokenizers import Tokenizer

    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
    path = Path(cache_dir) / f"pydoc_bpe_{vocab_size}_{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        train_tokenizer(texts, vocab_size).save(str(partial))
        os.replace(partial, path)
    return Tokenizer.from_file(str(path))


def token_stream(tokenizer, texts):
    """All texts as one int32 array of token ids, each text closed by the end-of-topic token."""
    end = tokenizer.token_to_id(END_OF_TOPIC)
    return np.concatenate([np.array(encoding.ids + [end], np.int32) for encoding in tokenizer.encode_batch(texts)])


def cut_windows(stream, seq_len, seed):
    """`stream` as shuffled windows [N, S + 1]: the last token of a window is the first of its neighbour in the text."""
    count = (len(stream) - 1) // seq_len
    if count < 1:
        raise ValueError(f"model.seq_length is {seq_len}, but the text has only {len(stream)} tokens")
    starts = np.random.default_rng(seed).permutation(count) * seq_len
    return stream[starts[:, None] + np.arange(seq_len + 1)]


class RankShare:
    """What one data-parallel rank reads: its contiguous part of every global batch.

    The order of the global batches does not depend on dp_size, so that the mean of the losses over dp is the loss of
    one process.

        windows 0..7, B = 4, dp_size = 2   ->   rank 0: 0 1 4 5   rank 1: 2 3 6 7
    """

    def __init__(self, windows, global_batch_size, dp_size=1, dp_rank=0):
        if global_batch_size % dp_size:
            raise ValueError(f"training.global_batch_size is {global_batch_size}, which data_parallel {dp_size} does "
                             "not divide")
        steps = len(windows) // global_batch_size
        if steps < 1:
            raise ValueError(f"training.global_batch_size is {global_batch_size}, but the text has only {len(windows)} "
                             "windows")
        batches = windows[:steps * global_batch_size].reshape(steps, dp_size, -1, windows.shape[-1])
        self.share = batches[:, dp_rank].reshape(-1, windows.shape[-1])

    def __len__(self):
        return len(self.share)

    def __getitem__(self, index):
        window = self.share[index]
        return window[:-1], window[1:]


def build_dataset(cache_dir, *, vocab_size, seq_len, global_batch_size, seed, dp_size=1, dp_rank=0):
    """A MindSpore dataset of `input_ids` and `labels` [B / dp_size, S] int32 for one data-parallel rank.

    All tensor-parallel ranks of one data-parallel rank build it alike and read the same data.
    """
    import mindspore.dataset as ds

    texts = documentation()
    stream = token_stream(load_tokenizer(cache_dir, texts, vocab_size), texts)
    share = RankShare(cut_windows(stream, seq_len, seed), global_batch_size, dp_size, dp_rank)
    # The samples are slices of an array in memory: worker threads or processes would only cost start-up time.
    ds.config.set_num_parallel_workers(1)
    dataset = ds.GeneratorDataset(share, ["input_ids", "labels"], shuffle=False, num_parallel_workers=1,
                                  python_multiprocessing=False)
    return dataset.batch(global_batch_size // dp_size, drop_remainder=True)
