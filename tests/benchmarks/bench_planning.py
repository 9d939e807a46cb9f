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
"""Planning time of 10,000 and 100,000 parameters, and of a DeepSeek-V3 of 671 billion.

    python tests/benchmarks/bench_planning.py

Targets: 100,000 parameters in 1,000 layers classified, planned, checked and printed in 0.5 s, at most 12 times the time
of 10,000; the DeepSeek-V3 inventory in 2 s.
"""
import platform
import resource
import time

from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.planner import plan

REPEATS = 5


def decoder(layers: int):
    """A decoder with 100 parameters a layer: attention with norms, and 30 feed-forward layers."""
    hidden, ffn, vocabulary = 4096, 11008, 32000
    parameters = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(layers):
        base = f"model.layers.{layer}"
        for name, shape in (("q_proj", (hidden, hidden)), ("k_proj", (1024, hidden)), ("v_proj", (1024, hidden)),
                            ("o_proj", (hidden, hidden)), ("q_norm", (128,)), ("k_norm", (128,))):
            parameters[f"{base}.self_attn.{name}.weight"] = shape
        for number in range(30):
            mlp = "mlp" if number == 0 else f"mlp_{number}"
            parameters[f"{base}.{mlp}.gate_proj.weight"] = (ffn, hidden)
            parameters[f"{base}.{mlp}.up_proj.weight"] = (ffn, hidden)
            parameters[f"{base}.{mlp}.down_proj.weight"] = (hidden, ffn)
        for name in ("input_layernorm", "post_attention_layernorm", "pre_layernorm", "post_layernorm"):
            parameters[f"{base}.{name}.weight"] = (hidden,)
    parameters["model.norm.weight"] = (hidden,)
    parameters["lm_head.weight"] = (vocabulary, hidden)
    config = {"model_type": "llama", "hidden_size": hidden, "num_attention_heads": 32, "num_key_value_heads": 8,
              "intermediate_size": ffn, "vocab_size": vocabulary, "num_hidden_layers": layers}
    return {"config": config, "parameters": {name: {"shape": shape} for name, shape in parameters.items()}}


def deepseek_v3(scales: bool = True):
    """The published checkpoint's names and shapes, FP8 scales included."""
    hidden, heads, q_rank, kv_rank, experts = 7168, 128, 1536, 512, 256
    parameters = {"model.embed_tokens.weight": ((129280, hidden), False)}

    def linear(path, rows, columns):
        parameters[f"{path}.weight"] = ((rows, columns), False)
        if scales:
            parameters[f"{path}.weight_scale_inv"] = ((-(-rows // 128), -(-columns // 128)), True)

    def gated(path, width):
        linear(f"{path}.gate_proj", width, hidden)
        linear(f"{path}.up_proj", width, hidden)
        linear(f"{path}.down_proj", hidden, width)

    for layer in range(61):
        base = f"model.layers.{layer}"
        attention = f"{base}.self_attn"
        linear(f"{attention}.q_a_proj", q_rank, hidden)
        linear(f"{attention}.q_b_proj", heads * 192, q_rank)
        linear(f"{attention}.kv_a_proj_with_mqa", kv_rank + 64, hidden)
        linear(f"{attention}.kv_b_proj", heads * 256, kv_rank)
        linear(f"{attention}.o_proj", hidden, heads * 128)
        for norm, size in ((f"{attention}.q_a_layernorm", q_rank), (f"{attention}.kv_a_layernorm", kv_rank),
                           (f"{base}.input_layernorm", hidden), (f"{base}.post_attention_layernorm", hidden)):
            parameters[f"{norm}.weight"] = ((size,), False)
        if layer < 3:
            gated(f"{base}.mlp", 18432)
            continue
        parameters[f"{base}.mlp.gate.weight"] = ((experts, hidden), False)
        parameters[f"{base}.mlp.gate.e_score_correction_bias"] = ((experts,), False)
        for expert in range(experts):
            gated(f"{base}.mlp.experts.{expert}", 2048)
        gated(f"{base}.mlp.shared_experts", 2048)
    parameters["model.norm.weight"] = ((hidden,), False)
    parameters["lm_head.weight"] = ((129280, hidden), False)
    config = {"model_type": "deepseek_v3", "hidden_size": hidden, "num_attention_heads": heads, "q_lora_rank": q_rank,
              "kv_lora_rank": kv_rank, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
              "n_routed_experts": experts, "moe_intermediate_size": 2048, "intermediate_size": 18432,
              "vocab_size": 129280, "architectures": ["DeepseekV3ForCausalLM"],
              "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    return {"config": config, "parameters": {name: {"shape": shape, "dtype": "float32" if is_scale else "F8_E4M3"}
                                             for name, (shape, is_scale) in parameters.items()}}


def seconds(record, tp: int) -> float:
    """Shortest processor time of plan and table, the inventory's records read before."""
    inventory = take_inventory(record)
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        plan(inventory, tp=tp).explain()
        times.append(time.process_time() - start)
    return min(times)


def main():
    """Print the figures."""
    small, large = seconds(decoder(100), 8), seconds(decoder(1000), 8)
    print(f"10,000 parameters {small:.3f} s, 100,000 parameters {large:.3f} s, ratio {large / small:.1f}")
    record = deepseek_v3()
    inventory = take_inventory(record)
    start = time.process_time()
    made = plan(inventory, tp=8)
    print(f"DeepSeek-V3, {len(made.parameters)} tensors: {time.process_time() - start:.3f} s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB; Python "
          f"{platform.python_version()}, {platform.machine()}")


if __name__ == "__main__":
    main()
