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
"""Latent attention, interleaved experts with biases, fused gate and up, and an encoder, on local weights."""
import numpy as np

from emulate import Ranks, attend, gelu, heads_of, layer_norm, rms_norm, rotate, silu, softmax
from other_decoders import mamba2


def _rotate_pairs(x_snd, base, width):
    """Rotary embedding of pairs (x0, x1), (x2, x3), … of the first `width` elements of every head."""
    angles = np.arange(x_snd.shape[0])[:, None] * base ** (-np.arange(width // 2) * 2.0 / width)[None]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x_snd[..., 0:width:2], x_snd[..., 1:width:2]
    turned = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(*x_snd.shape[:-1], width)
    return np.concatenate([turned, x_snd[..., width:]], -1)


def deepseek_v3(ranks: Ranks, ids):
    """Multi-head latent attention, or GLM-4 MoE's plain one; sigmoid routing with shared experts."""
    c = ranks.config
    eps, nope, rope = c["rms_norm_eps"], c.get("qk_nope_head_dim"), c.get("qk_rope_head_dim")

    def norm(name, x, rank=0):
        return rms_norm(x, ranks.get(rank, f"{name}.weight"), eps)

    def plain_attention(base, x):
        def part(rank):
            q, k, v = (heads_of(ranks.linear(rank, f"{base}.{name}_proj", x), c["head_dim"]) for name in "qkv")
            width = int(c["head_dim"] * c["partial_rotary_factor"])
            q, k = (rotate(y, c["rope_theta"], width) for y in (q, k))
            return ranks.linear(rank, f"{base}.o_proj", attend(q, k, v, c["head_dim"] ** -0.5))
        return ranks.reduce(part, f"{base}.o_proj")

    def attention(base, x):
        if nope is None:
            return plain_attention(base, x)

        def part(rank):
            latent = norm(f"{base}.q_a_layernorm", ranks.linear(rank, f"{base}.q_a_proj", x), rank)
            q = heads_of(ranks.linear(rank, f"{base}.q_b_proj", latent), nope + rope)
            joint = ranks.linear(rank, f"{base}.kv_a_proj_with_mqa", x)
            latent = norm(f"{base}.kv_a_layernorm", joint[:, :c["kv_lora_rank"]], rank)
            kv = heads_of(ranks.linear(rank, f"{base}.kv_b_proj", latent), nope + c["v_head_dim"])
            k_rot = _rotate_pairs(joint[:, None, c["kv_lora_rank"]:], c["rope_theta"], rope)
            q = np.concatenate([q[..., :nope], _rotate_pairs(q[..., nope:], c["rope_theta"], rope)], -1)
            k = np.concatenate([kv[..., :nope], np.repeat(k_rot, kv.shape[1], 1)], -1)
            return ranks.linear(rank, f"{base}.o_proj", attend(q, k, kv[..., nope:], (nope + rope) ** -0.5))
        return ranks.reduce(part, "")

    def gated(rank, base, x):
        return ranks.linear(rank, f"{base}.down_proj", silu(ranks.linear(rank, f"{base}.gate_proj", x))
                            * ranks.linear(rank, f"{base}.up_proj", x))

    def experts(base, x):
        def part(rank):
            scores = 1 / (1 + np.exp(-x @ ranks.get(rank, f"{base}.gate.weight").T))
            biased = scores + ranks.get(rank, f"{base}.gate.e_score_correction_bias")
            chosen = np.argsort(-biased, -1)[:, :c["num_experts_per_tok"]]
            weights = np.take_along_axis(scores, chosen, -1)
            weights = weights / weights.sum(-1, keepdims=True) * c["routed_scaling_factor"]
            total = gated(rank, f"{base}.shared_experts", x)
            for expert in range(scores.shape[1]):
                total = total + (weights * (chosen == expert)).sum(-1, keepdims=True) * gated(
                    rank, f"{base}.experts.{expert}", x)
            return total
        return ranks.reduce(part, "")

    x = ranks.embed("model.embed_tokens.weight", ids)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        x = x + attention(f"{base}.self_attn", norm(f"{base}.input_layernorm", x))
        y = norm(f"{base}.post_attention_layernorm", x)
        x = x + (experts(f"{base}.mlp", y) if layer >= c["first_k_dense_replace"] else
                 ranks.reduce(lambda rank: gated(rank, f"{base}.mlp", y), ""))
    return ranks.logits("lm_head", norm("model.norm", x), c["vocab_size"])


def glm4(ranks: Ranks, ids):
    """Norms before and after, rotary pairs over half a head, gate and up as halves."""
    c = ranks.config
    size = c["head_dim"]

    def norm(name, x):
        return rms_norm(x, ranks.get(0, f"{name}.weight"), c["rms_norm_eps"])

    def attention(base, x):
        def part(rank):
            q, k, v = (heads_of(ranks.linear(rank, f"{base}.{name}_proj", x), size) for name in "qkv")
            width = int(size * c["partial_rotary_factor"])
            q, k = (_rotate_pairs(y, c["rope_theta"], width) for y in (q, k))
            return ranks.linear(rank, f"{base}.o_proj", attend(q, k, v, size ** -0.5))
        return ranks.reduce(part, f"{base}.o_proj")

    def feed_forward(base, x):
        def part(rank):
            gate, up = np.split(ranks.linear(rank, f"{base}.gate_up_proj", x), 2, -1)
            return ranks.linear(rank, f"{base}.down_proj", silu(gate) * up)
        return ranks.reduce(part, "")

    x = ranks.embed("model.embed_tokens.weight", ids)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        x = x + norm(f"{base}.post_self_attn_layernorm",
                     attention(f"{base}.self_attn", norm(f"{base}.input_layernorm", x)))
        x = x + norm(f"{base}.post_mlp_layernorm",
                     feed_forward(f"{base}.mlp", norm(f"{base}.post_attention_layernorm", x)))
    return ranks.logits("lm_head", norm("model.norm", x), c["vocab_size"])


def gpt_oss(ranks: Ranks, ids):
    """Attention sinks; stacks of experts `[experts, in, out]` with interleaved gate and up, and biases."""
    c = ranks.config
    size, eps = c["head_dim"], c["rms_norm_eps"]
    frequencies, stretch = _yarn(c)

    def norm(name, x):
        return rms_norm(x, ranks.get(0, f"{name}.weight"), eps)

    def turn(x_snd):
        angles = np.arange(len(x_snd))[:, None, None] * frequencies
        a, b = np.split(x_snd, 2, -1)
        cos, sin = np.cos(angles) * stretch, np.sin(angles) * stretch
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(base, x):
        def part(rank):
            q, k, v = (heads_of(ranks.linear(rank, f"{base}.{name}_proj", x), size) for name in "qkv")
            q, k = turn(q), turn(k)
            repeat = q.shape[1] // k.shape[1]
            k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
            scores = np.einsum("snd,tnd->nst", q, k) * size ** -0.5 + np.triu(np.full((len(x),) * 2, -1e30), 1)
            sinks = np.broadcast_to(ranks.get(rank, f"{base}.sinks")[:, None, None], scores.shape[:2] + (1,))
            share = softmax(np.concatenate([scores, sinks], -1))[..., :-1]
            return ranks.linear(rank, f"{base}.o_proj", np.einsum("nst,tnd->snd", share, v).reshape(len(x), -1))
        return ranks.reduce(part, f"{base}.o_proj")

    def experts(base, x):
        def part(rank):
            logits = x @ ranks.get(rank, f"{base}.router.weight").T + ranks.get(rank, f"{base}.router.bias")
            chosen = np.argsort(-logits, -1)[:, :c["num_experts_per_tok"]]
            weights = softmax(np.take_along_axis(logits, chosen, -1))
            total = 0
            for expert in range(logits.shape[1]):
                y = x @ ranks.get(rank, f"{base}.experts.gate_up_proj")[expert] + ranks.get(
                    rank, f"{base}.experts.gate_up_proj_bias")[expert]
                gate, up = np.minimum(y[:, ::2], 7.0), np.clip(y[:, 1::2], -7.0, 7.0)
                y = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
                y = y @ ranks.get(rank, f"{base}.experts.down_proj")[expert]
                y = y + ranks.get(rank, f"{base}.experts.down_proj_bias")[expert]
                total = total + (weights * (chosen == expert)).sum(-1, keepdims=True) * y
            return total
        return ranks.reduce(part, "")

    x = ranks.embed("model.embed_tokens.weight", ids)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        x = x + attention(f"{base}.self_attn", norm(f"{base}.input_layernorm", x))
        x = x + experts(f"{base}.mlp", norm(f"{base}.post_attention_layernorm", x))
    return ranks.logits("lm_head", norm("model.norm", x), c["vocab_size"])


def _yarn(c):
    """Frequencies and scale of YaRN (arXiv 2309.00071), as the configuration sets it."""
    scaling, size = c["rope_scaling"], c["head_dim"]
    plain = c["rope_theta"] ** (-np.arange(size // 2) * 2.0 / size)

    def dim_of(turns):
        return size * np.log(scaling["original_max_position_embeddings"] / (turns * 2 * np.pi)) / (
            2 * np.log(c["rope_theta"]))
    low, high = max(dim_of(scaling["beta_fast"]), 0), min(dim_of(scaling["beta_slow"]), size - 1)
    keep = 1 - np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
    return plain / scaling["factor"] * (1 - keep) + plain * keep, 0.1 * np.log(scaling["factor"]) + 1


def bert(ranks: Ranks, ids):
    """An encoder with norms behind the residuals, and a masked-language head on the embedding's table."""
    c = ranks.config
    size, eps = c["hidden_size"] // c["num_attention_heads"], c["layer_norm_eps"]

    def norm(name, x):
        return layer_norm(x, ranks.get(0, f"{name}.weight"), ranks.get(0, f"{name}.bias"), eps)

    def attention(base, x):
        def part(rank):
            q, k, v = (heads_of(ranks.linear(rank, f"{base}.self.{name}", x), size)
                       for name in ("query", "key", "value"))
            share = softmax(np.einsum("snd,tnd->nst", q, k) * size ** -0.5)
            y = np.einsum("nst,tnd->snd", share, v).reshape(len(x), -1)
            return ranks.linear(rank, f"{base}.output.dense", y)
        return ranks.reduce(part, f"{base}.output.dense")

    tables = "bert.embeddings"
    x = ranks.embed(f"{tables}.word_embeddings.weight", ids)
    x = x + ranks.get(0, f"{tables}.position_embeddings.weight")[:len(ids)]
    x = norm(f"{tables}.LayerNorm", x + ranks.get(0, f"{tables}.token_type_embeddings.weight")[0])
    for layer in range(c["num_hidden_layers"]):
        base = f"bert.encoder.layer.{layer}"
        x = norm(f"{base}.attention.output.LayerNorm", x + attention(f"{base}.attention", x))
        y = ranks.reduce(lambda rank: ranks.linear(rank, f"{base}.output.dense", gelu(
            ranks.linear(rank, f"{base}.intermediate.dense", x))), f"{base}.output.dense")
        x = norm(f"{base}.output.LayerNorm", x + y)
    head = "cls.predictions"
    x = norm(f"{head}.transform.LayerNorm", gelu(ranks.linear(0, f"{head}.transform.dense", x)))
    bias = np.concatenate([ranks.get(rank, f"{head}.bias") for rank in range(ranks.tp)])
    return ranks.logits(f"{tables}.word_embeddings", x, c["vocab_size"]) + bias


OTHERS = {"deepseek_v3": deepseek_v3, "glm4_moe": deepseek_v3,
          "mamba2": mamba2, "glm4": glm4, "gpt_oss": gpt_oss, "bert": bert}
