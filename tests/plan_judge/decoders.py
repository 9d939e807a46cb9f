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
"""Decoders of the small model folders, each as its reference library computes it, on local weights."""
import numpy as np

from emulate import (
    Ranks, alibi, attend, gelu, gelu_tanh, heads_of, layer_norm, relu, rms_norm, rotate, silu, softmax)


def llama_like(ranks: Ranks, ids):
    """Llama, Mistral, Qwen 2 and 3 (with experts), Mixtral, Phi-3, Starcoder 2, Gemma 2."""
    c, kind = ranks.config, ranks.config["model_type"]
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    eps = c.get("rms_norm_eps") or c.get("norm_epsilon")
    shift = 1 if kind == "gemma2" else 0

    def norm(name, x):
        weight, bias = ranks.get(0, f"{name}.weight"), ranks.get(0, f"{name}.bias")
        return layer_norm(x, weight, bias, eps) if kind == "starcoder2" else rms_norm(x, weight + shift, eps)

    def attention(base, x):
        def part(rank):
            if kind == "phi3":
                y = heads_of(ranks.linear(rank, f"{base}.qkv_proj", x), size)
                kv = max(1, c["num_key_value_heads"] // ranks.tp)
                q, k, v = y[:, :-2 * kv], y[:, -2 * kv:-kv], y[:, -kv:]
            else:
                q, k, v = (heads_of(ranks.linear(rank, f"{base}.{name}_proj", x), size) for name in "qkv")
            if kind in ("qwen3", "qwen3_moe"):
                q, k = (rms_norm(y, ranks.get(rank, f"{base}.{name}_norm.weight"), eps)
                        for name, y in (("q", q), ("k", k)))
            q, k = (rotate(y, c["rope_theta"], size) for y in (q, k))
            scale = c.get("query_pre_attn_scalar", size) ** -0.5
            return ranks.linear(rank, f"{base}.o_proj", attend(q, k, v, scale, None, c.get("attn_logit_softcapping")))
        return ranks.reduce(part, f"{base}.o_proj")

    def gated(rank, base, x, names=("gate_proj", "up_proj", "down_proj"), act=silu):
        gate, up = (ranks.linear(rank, f"{base}.{name}", x) for name in names[:2])
        return ranks.linear(rank, f"{base}.{names[2]}", act(gate) * up)

    def experts(base, x):
        names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")

        def part(rank):
            scores = softmax(x @ ranks.get(rank, f"{base}.gate.weight").T)
            chosen = np.argsort(-scores, -1)[:, :c["num_experts_per_tok"]]
            weights = np.take_along_axis(scores, chosen, -1)
            if kind == "mixtral" or c.get("norm_topk_prob"):
                weights = weights / weights.sum(-1, keepdims=True)
            total = np.zeros_like(x)
            for expert in range(scores.shape[1]):
                share = (weights * (chosen == expert)).sum(-1, keepdims=True)
                total += share * gated(rank, f"{base}.experts.{expert}", x, names)
            if kind == "qwen2_moe":
                share = 1 / (1 + np.exp(-x @ ranks.get(rank, f"{base}.shared_expert_gate.weight").T))
                total += share * gated(rank, f"{base}.shared_expert", x)
            return total
        return ranks.reduce(part, "")

    def feed_forward(base, x):
        if kind in ("mixtral", "qwen2_moe", "qwen3_moe"):
            return experts(f"{base}.block_sparse_moe" if kind == "mixtral" else f"{base}.mlp", x)
        if kind == "starcoder2":
            return ranks.reduce(lambda rank: ranks.linear(rank, f"{base}.mlp.c_proj", gelu_tanh(
                ranks.linear(rank, f"{base}.mlp.c_fc", x))), f"{base}.mlp.c_proj")
        if kind == "phi3":
            def part(rank):
                gate, up = np.split(ranks.linear(rank, f"{base}.mlp.gate_up_proj", x), 2, -1)
                return ranks.linear(rank, f"{base}.mlp.down_proj", silu(gate) * up)
            return ranks.reduce(part, "")
        act = gelu_tanh if kind == "gemma2" else silu
        return ranks.reduce(lambda rank: gated(rank, f"{base}.mlp", x, act=act), "")

    x = ranks.embed("model.embed_tokens.weight", ids)
    if kind == "gemma2":
        x = x * c["hidden_size"] ** 0.5
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        y = attention(f"{base}.self_attn", norm(f"{base}.input_layernorm", x))
        if kind == "gemma2":
            x = x + norm(f"{base}.post_attention_layernorm", y)
            y = feed_forward(base, norm(f"{base}.pre_feedforward_layernorm", x))
            x = x + norm(f"{base}.post_feedforward_layernorm", y)
        else:
            x = x + y
            x = x + feed_forward(base, norm(f"{base}.post_attention_layernorm", x))
    x = norm("model.norm", x)
    head = "lm_head" if ranks.get(0, "lm_head.weight") is not None else "model.embed_tokens"
    logits = ranks.logits(head, x, c["vocab_size"])
    cap = c.get("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits


def gpt_like(ranks: Ranks, ids):
    """GPT-2, GPT-BigCode, GPT-NeoX, Bloom, MPT, Falcon's new decoder, Phi, OPT."""
    c, kind = ranks.config, ranks.config["model_type"]
    hidden = c.get("hidden_size") or c.get("n_embd") or c.get("d_model")
    heads = c.get("num_attention_heads") or c.get("n_head") or c.get("n_heads")
    layers = c.get("num_hidden_layers") or c.get("n_layer") or c.get("n_layers")
    size, eps = hidden // heads, c.get("layer_norm_epsilon") or c.get("layer_norm_eps") or 1e-5
    names = {  # blocks, attention, (fused or q), out, up, down, activation
        "gpt2": ("transformer.h", "attn", "c_attn", "c_proj", "mlp.c_fc", "mlp.c_proj", gelu_tanh),
        "gpt_bigcode": ("transformer.h", "attn", "c_attn", "c_proj", "mlp.c_fc", "mlp.c_proj", gelu_tanh),
        "gpt_neox": ("gpt_neox.layers", "attention", "query_key_value", "dense", "mlp.dense_h_to_4h",
                     "mlp.dense_4h_to_h", gelu),
        "bloom": ("transformer.h", "self_attention", "query_key_value", "dense", "mlp.dense_h_to_4h",
                  "mlp.dense_4h_to_h", gelu_tanh),
        "falcon": ("transformer.h", "self_attention", "query_key_value", "dense", "mlp.dense_h_to_4h",
                   "mlp.dense_4h_to_h", gelu),
        "mpt": ("transformer.blocks", "attn", "Wqkv", "out_proj", "ffn.up_proj", "ffn.down_proj", gelu),
        "phi": ("model.layers", "self_attn", "", "dense", "mlp.fc1", "mlp.fc2", gelu_tanh),
        "opt": ("model.decoder.layers", "self_attn", "", "out_proj", "fc1", "fc2", relu)}[kind]
    blocks, attn, fused, out, up, down, act = names
    in_out = kind == "gpt2"

    def norm(name, x, rank=0):
        return layer_norm(x, ranks.get(rank, f"{name}.weight"), ranks.get(rank, f"{name}.bias"), eps)

    def split(rank, base, x):
        if not fused:
            return [heads_of(ranks.linear(rank, f"{base}.{name}_proj", x), size) for name in "qkv"]
        y = ranks.linear(rank, f"{base}.{fused}", x, in_out)
        local = heads // ranks.tp
        if kind in ("gpt_neox", "bloom"):
            y = y.reshape(len(x), local, 3, size)
            return [y[:, :, at] for at in range(3)]
        y = heads_of(y, size)
        kv = {"gpt_bigcode": 1, "falcon": max(1, (c.get("num_kv_heads") or 1) // ranks.tp)}.get(kind, local)
        if kind == "falcon":
            y = y.reshape(len(x), kv, -1, size)
            return [y[:, :, :-2].reshape(len(x), -1, size), y[:, :, -2], y[:, :, -1]]
        return [y[:, :local], y[:, local:local + kv], y[:, local + kv:]]

    def attention(base, x_of):
        def part(rank):
            x = x_of(rank)
            q, k, v = split(rank, base, x)
            if kind in ("gpt_neox", "phi", "falcon"):
                width = int(size * (c.get("partial_rotary_factor") or c.get("rotary_pct") or 1)) if kind != "falcon" \
                    else size
                q, k = (rotate(y, c["rope_theta"], width) for y in (q, k))
            bias = alibi(ranks, rank, len(x), heads) if kind in ("bloom", "mpt") else None
            return ranks.linear(rank, f"{base}.{out}", attend(q, k, v, size ** -0.5, bias), in_out)
        return ranks.reduce(part, f"{base}.{out}")

    def feed_forward(base, x_of):
        return ranks.reduce(lambda rank: ranks.linear(rank, f"{base}.{down}", act(
            ranks.linear(rank, f"{base}.{up}", x_of(rank), in_out)), in_out), f"{base}.{down}")

    def normed(name, x):
        """What a rank's region reads: a parallel block's norms stand inside of it."""
        if kind in ("gpt_neox", "falcon", "phi"):
            return lambda rank: norm(name, x, rank)
        whole = norm(name, x)
        return lambda rank: whole

    table = {"gpt_neox": "gpt_neox.embed_in", "bloom": "transformer.word_embeddings", "phi": "model.embed_tokens",
             "falcon": "transformer.word_embeddings", "opt": "model.decoder.embed_tokens"}.get(kind, "transformer.wte")
    x = ranks.embed(f"{table}.weight", ids)
    if kind in ("gpt2", "gpt_bigcode"):
        x = x + ranks.get(0, "transformer.wpe.weight")[:len(ids)]
    elif kind == "opt":
        x = x + ranks.get(0, "model.decoder.embed_positions.weight")[2:2 + len(ids)]
    elif kind == "bloom":
        x = norm("transformer.word_embeddings_layernorm", x)
    first, second = {"gpt_neox": ("input_layernorm", "post_attention_layernorm"), "mpt": ("norm_1", "norm_2"),
                     "bloom": ("input_layernorm", "post_attention_layernorm"), "falcon": ("ln_attn", "ln_mlp"),
                     "opt": ("self_attn_layer_norm", "final_layer_norm"),
                     "phi": ("input_layernorm", "input_layernorm")}.get(kind, ("ln_1", "ln_2"))
    for layer in range(layers):
        base = f"{blocks}.{layer}"
        y = attention(f"{base}.{attn}", normed(f"{base}.{first}", x))
        if kind in ("gpt_neox", "falcon", "phi"):
            x = x + y + feed_forward(base, normed(f"{base}.{second}", x))
        else:
            x = x + y
            x = x + feed_forward(base, normed(f"{base}.{second}", x))
    last = {"gpt_neox": "gpt_neox.final_layer_norm", "mpt": "transformer.norm_f", "phi": "model.final_layernorm",
            "opt": "model.decoder.final_layer_norm"}.get(kind, "transformer.ln_f")
    head = {"gpt_neox": "embed_out", "phi": "lm_head"}.get(kind, table)
    return ranks.logits(head, norm(last, x), c["vocab_size"])


DECODERS = {**{name: llama_like for name in ("llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "phi3",
                                             "starcoder2", "gemma2")},
            **{name: gpt_like for name in ("gpt2", "gpt_bigcode", "gpt_neox", "bloom", "falcon", "mpt", "phi", "opt")}}
