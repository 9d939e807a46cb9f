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
"""An encoder-decoder with relative position tables, and a state-space model, on local weights."""
import numpy as np

from emulate import Ranks, gelu_tanh, heads_of, rms_norm, silu, softmax


def _buckets(queries: int, keys: int, both_ways: bool, count: int, reach: int):
    """T5's buckets of relative positions, `[queries, keys]`."""
    relative = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    found = np.zeros_like(relative)
    if both_ways:
        count //= 2
        found = (relative > 0) * count
        relative = np.abs(relative)
    else:
        relative = -np.minimum(relative, 0)
    exact = count // 2
    far = exact + (np.log(np.maximum(relative, 1) / exact) / np.log(reach / exact) * (count - exact)).astype(int)
    return found + np.where(relative < exact, relative, np.minimum(far, count - 1))


def t5(ranks: Ranks, ids, decoder_ids):
    """Encoder and decoder; cross-attention reads the encoder's states."""
    c = ranks.config
    size = c["d_kv"]

    def norm(name, x):
        return rms_norm(x, ranks.get(0, f"{name}.weight"), c["layer_norm_epsilon"])

    def attention(base, x, states, table, causal):
        def part(rank):
            q = heads_of(ranks.linear(rank, f"{base}.q", x), size)
            k, v = (heads_of(ranks.linear(rank, f"{base}.{name}", states), size) for name in "kv")
            scores = np.einsum("snd,tnd->nst", q, k)
            if table:
                buckets = _buckets(len(x), len(states), not causal, c["relative_attention_num_buckets"],
                                   c["relative_attention_max_distance"])
                scores = scores + ranks.get(rank, f"{table}.weight")[buckets].transpose(2, 0, 1)
            if causal:
                scores = scores + np.triu(np.full(scores.shape[1:], -1e30), 1)
            y = np.einsum("nst,tnd->snd", softmax(scores), v).reshape(len(x), -1)
            return ranks.linear(rank, f"{base}.o", y)
        return ranks.reduce(part, "")

    def feed_forward(base, x):
        return ranks.reduce(lambda rank: ranks.linear(rank, f"{base}.wo", gelu_tanh(
            ranks.linear(rank, f"{base}.wi_0", x)) * ranks.linear(rank, f"{base}.wi_1", x)), "")

    def stack(name, x, states, causal):
        table = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias"
        for layer in range(c["num_layers"] if name == "encoder" else c["num_decoder_layers"]):
            base = f"{name}.block.{layer}.layer"
            y = norm(f"{base}.0.layer_norm", x)
            x = x + attention(f"{base}.0.SelfAttention", y, y, table, causal)
            if states is not None:
                x = x + attention(f"{base}.1.EncDecAttention", norm(f"{base}.1.layer_norm", x), states, None, False)
            last = 1 if states is None else 2
            x = x + feed_forward(f"{base}.{last}.DenseReluDense", norm(f"{base}.{last}.layer_norm", x))
        return norm(f"{name}.final_layer_norm", x)

    states = stack("encoder", ranks.embed("shared.weight", ids), None, False)
    x = stack("decoder", ranks.embed("shared.weight", decoder_ids), states, True)
    return ranks.logits("lm_head", x, c["vocab_size"])


def mamba2(ranks: Ranks, ids):
    """Heads of a state space; B and C are shared by all heads; the gated norm spans the cut inner width."""
    c = ranks.config
    eps, size, state = c["layer_norm_epsilon"], c["head_dim"], c["state_size"]

    def scan(rank, base, x):
        y = ranks.linear(rank, f"{base}.in_proj", x)
        heads = ranks.get(rank, f"{base}.A_log").shape[0]
        inner = heads * size
        gate, joint, steps = np.split(y, [inner, y.shape[1] - heads], -1)
        weight = ranks.get(rank, f"{base}.conv1d.weight")[:, 0]
        padded = np.concatenate([np.zeros((weight.shape[1] - 1, joint.shape[1])), joint])
        joint = silu(sum(padded[at:at + len(x)] * weight[:, at] for at in range(weight.shape[1]))
                     + ranks.get(rank, f"{base}.conv1d.bias"))
        u, b, c_out = np.split(joint, [inner, inner + state], -1)
        steps = np.log1p(np.exp(steps + ranks.get(rank, f"{base}.dt_bias")))
        decay = np.exp(-np.exp(ranks.get(rank, f"{base}.A_log")) * steps)
        memory, out = np.zeros((heads, size, state)), []
        for at in range(len(x)):
            value = u[at].reshape(heads, size)
            memory = memory * decay[at][:, None, None] + (steps[at][:, None] * value)[..., None] * b[at]
            out.append((memory @ c_out[at] + ranks.get(rank, f"{base}.D")[:, None] * value).reshape(-1))
        return np.stack(out) * silu(gate)

    def mixer(base, x):
        local = [scan(rank, base, x) for rank in range(ranks.tp)]
        width = sum(y.shape[1] for y in local)
        scale = 1 / np.sqrt(sum((y * y).sum(-1, keepdims=True) for y in local) / width + eps)
        return ranks.reduce(lambda rank: ranks.linear(rank, f"{base}.out_proj", local[rank] * scale * ranks.get(
            rank, f"{base}.norm.weight")), "")

    x = ranks.embed("backbone.embeddings.weight", ids)
    for layer in range(c["num_hidden_layers"]):
        base = f"backbone.layers.{layer}"
        x = x + mixer(f"{base}.mixer", rms_norm(x, ranks.get(0, f"{base}.norm.weight"), eps))
    return ranks.logits("lm_head", rms_norm(x, ranks.get(0, "backbone.norm_f.weight"), eps), c["vocab_size"])
