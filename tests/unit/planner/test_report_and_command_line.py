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
"""The report, its JSON and HTML, the difference of two plans, the estimate, and the command line."""
import json
import re
import struct

import pytest

import inventories
from hyper_parallel.cli.main import COMMANDS, DONE, REFUSED, USAGE, main
from hyper_parallel.cli.planning import read_config
from hyper_parallel.distributed.estimate import estimate, parse_bytes, recommend
from hyper_parallel.distributed.html_report import html_report
from hyper_parallel.distributed.inventory import take_inventory
from hyper_parallel.distributed.plan_diff import diff_plans
from hyper_parallel.distributed.planner import plan
from hyper_parallel.distributed.recipe_spec import ShardingPlan
from hyper_parallel.distributed.report import dtype_bytes, make_report
from inventories import LLAMA, record
from twins import obfuscated


@pytest.fixture(name="llama_file")
def _llama_file(tmp_path):
    file = tmp_path / "llama.json"
    file.write_text(json.dumps(inventories.folders()["llama"]), encoding="utf-8")
    return str(file)


def test_the_report_has_one_row_per_template_with_the_layers_it_holds():
    report = make_report(plan(inventories.folders()["deepseek_v3"], tp=2))
    rows = {row.name: row for row in report.rows}
    assert rows["model.layers.[0-1].self_attn.q_b_proj.weight"].count == 2
    experts = rows["model.layers.[1].mlp.experts.*.up_proj.weight"]
    assert experts.count == 4 and experts.local_bytes == 4 * 16 * 64 * 4 and experts.global_bytes == 4 * 32 * 64 * 4
    assert report.totals[0].startswith("45 parameters") or "parameters" in report.totals[0]
    assert ("latent_attention", 2, "1 all_reduce", "1 all_reduce") in report.collectives


def test_gaps_in_the_layers_of_a_template_are_shown():
    shapes = {name.replace(".0.", f".{layer}."): size for layer in (0, 1, 3) for name, size in LLAMA.items()}
    text = plan(record(shapes), tp=2).explain()
    assert "model.layers.[0-1,3].self_attn.q_proj" in text


def test_the_table_names_overrides_notes_and_collectives():
    made = plan(inventories.folders()["llama"], tp=4, overrides=[{"match": "*.layers.0.mlp.*", "replicate": True}])
    text = made.explain()
    for word in ("decided by you: model.layers.[0].mlp.down_proj.weight", "attention (2): forward: 1 all_reduce",
                 "neighbouring ranks share", "sum over 2 copies"):
        assert word in text


def test_one_parameter_with_all_its_evidence():
    made = plan(record(LLAMA), tp=2, rules=[{"match": "*.input_layernorm.weight", "role": "REPLICATED"}])
    text = made.explain("model.layers.0.input_layernorm.weight")
    assert "because    user rule" in text and "not        the name alone says NORM" in text
    with pytest.raises(ValueError, match="nearest: .*input_layernorm"):
        made.explain("model.layers.0.input_layernrm.weight")


def test_json_is_for_readers_and_for_loading():
    data = plan(inventories.folders()["llama"], tp=2).to_dict()
    assert data["schema"] == 1 and data["tp"] == 2 and "model.layers.0.mlp" in data["modules"]
    entry = data["parameters"]["model.layers.0.self_attn.q_proj.weight"]
    assert entry["role"] == "COLWISE" and entry["evidence"] == ["segment 'q_proj'"]
    assert (entry["global_shape"], entry["local_shape"], entry["placement"]) == ([64, 64], [32, 64], {"tp": "shard(0)"})
    with pytest.raises(ValueError, match="schema None; this version reads 1"):
        ShardingPlan.from_dict({})


def test_shard_and_unshard_name_what_is_not_there():
    made = plan(record(LLAMA), tp=2)
    with pytest.raises(ValueError, match="no parameter 'lm_hed.weight'; nearest: lm_head.weight"):
        made.shard("lm_hed.weight", None, 0)


@pytest.mark.parametrize("content, said", [(None, "no plan at"), ("{", "holds no plan")])
def test_loading_what_is_no_plan(tmp_path, content, said):
    file = tmp_path / "plan.json"
    if content:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        ShardingPlan.load(file)


def test_the_page_is_self_contained_and_escapes_names():
    shapes = {**LLAMA, "model.</script>projector.weight": (64, 64)}
    page = html_report(plan(record(shapes), tp=2, unknown="replicate"))
    assert "http" not in page and "</script>projector" not in page and "<\\/script>projector" in page
    assert page.count("<th>") == 9 and "tp 1" in page


def test_differences_of_two_plans():
    two, four = (plan(inventories.folders()["llama"], tp=tp) for tp in (2, 4))
    lines = diff_plans(two, four)
    assert lines[0] == "tp: 2 -> 4" and any("copies 1 -> 2" in line for line in lines)
    assert diff_plans(two, plan(inventories.folders()["llama"], tp=2)) == ["nothing changed"]
    whole = plan(inventories.folders()["llama"], tp=2, vocab_padding=False,
                 overrides=[{"match": "model.layers.0.mlp.*", "replicate": True}])
    lines = diff_plans(two, whole)
    assert "option vocab_padding: True -> False" in lines and "boundary model.layers.0.mlp: only before" in lines
    assert any("placement tp shard(0) -> tp replicate" in line for line in lines)
    other = plan(inventories.folders()["qwen3"], tp=2)
    assert any(line.startswith("+ ") for line in diff_plans(two, other))
    assert any(line.startswith("- ") for line in diff_plans(other, two))
    with_bias = record({**LLAMA, "model.layers.0.self_attn.o_proj.bias": (64,)})
    biased = diff_plans(plan(record(LLAMA), tp=2), plan(with_bias, tp=2))
    assert any(line.startswith("boundary model.layers.0.self_attn: attention") for line in biased)


def test_estimate_counts_bytes_from_the_plan_and_wire_from_the_templates():
    made = plan(inventories.folders()["qwen2"], tp=2)
    found = estimate(made, 64, 4, 2, batch=1, sequence=8, activation_bytes=4)
    local = sum(4 * _size(spec.local_shape) for spec in made.parameters.values())
    assert found.parameters == local and found.gradients == local and found.optimizer == 2 * local
    assert found.communication_per_layer == round(8 * (2 - 1) / 2 * 8 * 64 * 4)
    assert found.total == found.parameters + found.gradients + found.optimizer + found.activations
    cut = plan(inventories.folders()["qwen2"], tp=2, sequence_parallel=True)
    assert estimate(cut, 64, 4, 2, sequence=8).activations == round(2 * 8 * 64 / 2 * (34 + 5 * 4 * 8 / 64))
    sizes = [estimate(made, 64, 4, 2, sequence=512, recompute=word).activations
             for word in ("none", "attention", "full")]
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(ValueError, match="valid are none, attention, full"):
        estimate(made, 64, 4, 2, recompute="some")


def _size(shape):
    total = 1
    for one in shape:
        total *= one
    return total


@pytest.mark.parametrize("text, expected", [("64GB", 64 * 10 ** 9), ("1GiB", 2 ** 30), ("512", 512), ("1.5 kb", 1500)])
def test_sizes_of_memory(text, expected):
    assert parse_bytes(text) == expected


def test_sizes_that_are_none():
    with pytest.raises(ValueError, match="write 64GB"):
        parse_bytes("much")
    assert [dtype_bytes(name) for name in ("BF16", "float32", "F8_E4M3", "mindspore.float16", "odd")] == [2, 4, 1, 2, 4]


def test_recommending_says_why():
    found = recommend(inventories.folders()["llama"], parse_bytes("2GB"), 4, {})
    assert (found.tp, found.dp) == (1, 4) and "fits" in found.reasons[-1]
    found = recommend(inventories.folders()["llama"], parse_bytes("500MB"), 6, {})
    assert found.tp == 2 and "too much" in found.reasons[0]
    with pytest.raises(ValueError, match="no tensor-parallel size fits.*tp 3: not possible"):
        recommend(inventories.folders()["llama"], 1000, 3, {})


def run(capsys, *words):
    """(exit code, output, errors)."""
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_plan_prints_and_writes(capsys, tmp_path, llama_file):
    json_file, page = tmp_path / "out" / "plan.json", tmp_path / "out" / "plan.html"
    code, out, _ = run(capsys, "plan", "--model", llama_file, "--tp", "2", "--json", str(json_file),
                       "--html", str(page))
    assert code == DONE and "model.layers.[0-1].self_attn.q_proj.weight" in out and page.is_file()
    assert ShardingPlan.load(json_file).tp == 2
    code, out, _ = run(capsys, "plan", "--model", llama_file, "--tp", "4", "--diff", str(json_file))
    assert code == DONE and out.startswith("tp: 2 -> 4")
    code, out, _ = run(capsys, "plan", "--model", llama_file, "--tp", "2", "--json", "-")
    assert code == DONE and json.loads(out)["schema"] == 1


def test_plan_of_a_folder_reads_headers_and_the_shards_of_an_index(capsys, tmp_path):
    names = list(inventories.folders()["llama"]["parameters"])
    (tmp_path / "config.json").write_text(json.dumps(inventories.folders()["llama"]["config"]), encoding="utf-8")
    for at, part in enumerate((names[:5], names[5:])):
        header = json.dumps({**{name: {"dtype": "F32", "data_offsets": [0, 0], "shape": inventories.folders()["llama"][
            "parameters"][name]["shape"]} for name in part}, "__metadata__": {}}).encode()
        (tmp_path / f"model-{at}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    weight_map = {name: f"model-{int(at >= 5)}.safetensors" for at, name in enumerate(names)}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    code, _, _ = run(capsys, "plan", "--model", str(tmp_path), "--tp", "2")
    assert code == DONE
    (tmp_path / "model-1.safetensors").unlink()
    code, _, err = run(capsys, "plan", "--model", str(tmp_path), "--tp", "2")
    assert code == REFUSED and "model-1.safetensors" in err


def test_a_refused_plan_still_writes_what_is_decided(capsys, tmp_path):
    twin, _ = obfuscated(inventories.folders()["llama"])
    file, out_file = tmp_path / "twin.json", tmp_path / "plan.json"
    file.write_text(json.dumps(twin), encoding="utf-8")
    code, _, err = run(capsys, "plan", "--model", str(file), "--tp", "2", "--json", str(out_file))
    data = json.loads(out_file.read_text(encoding="utf-8"))
    assert code == REFUSED and "refused: cannot decide" in err and data["error"] in err
    assert data["undecided"] and all(one["candidates"] for one in data["undecided"].values())
    assert len(data["parameters"]) + len(data["undecided"]) == len(twin["parameters"])


@pytest.mark.parametrize("words, code, said", [
    (["plan"], USAGE, "--model is missing"), (["plan", "--model", "x.json"], REFUSED, "no model at"),
    (["plan", "--model", "LLAMA", "--tp", "two"], USAGE, "positive integer"),
    (["plan", "--model", "LLAMA", "--tp", "auto"], USAGE, "--device-memory"),
    (["plan", "--model", "LLAMA", "--tp", "3"], REFUSED, "valid sizes: 1, 2, 4"),
    (["plan", "--model", "LLAMA", "--frob"], USAGE, "unrecognized"), (["frob"], USAGE, "invalid choice"),
    ([], USAGE, ""),
    (["explain", "lm_head.weight"], USAGE, "one of --model and --plan"), (["--help"], DONE, ""),
    (["plan", "--model", "LLAMA", "--config", "none.yaml"], REFUSED, "no configuration")])
def test_exit_codes(capsys, llama_file, words, code, said):
    found, _, err = run(capsys, *(llama_file if word == "LLAMA" else word for word in words))
    assert found == code and said in err


def test_auto_recommends(capsys, llama_file):
    code, _, err = run(capsys, "plan", "--model", llama_file, "--tp", "auto", "--device-memory", "2GB", "--world", "2")
    assert code == DONE and "fits, so that 2 replicas share the data" in err


def test_explain_one_parameter_of_a_model_or_a_plan(capsys, tmp_path, llama_file):
    name = "model.layers.0.self_attn.k_proj.weight"
    code, out, _ = run(capsys, "explain", name, "--model", llama_file, "--tp", "4")
    assert code == DONE and "sum over 2 copies" in out
    file = tmp_path / "plan.json"
    run(capsys, "plan", "--model", llama_file, "--tp", "4", "--json", str(file))
    code, out, _ = run(capsys, "explain", name, "--plan", str(file), "--json", "-")
    assert code == DONE and json.loads(out)["copies"] == 2
    code, _, err = run(capsys, "explain", "nothing", "--plan", str(file))
    assert code == REFUSED and "nearest" in err


def test_switches_and_a_file_of_words(capsys, tmp_path, llama_file):
    file = tmp_path / "words.yaml"
    file.write_text("parallel_config:\n  auto_tp_config:\n    report: x.json\n    overrides:\n"
                    "      - {match: '*.mlp.*', replicate: true}\n", encoding="utf-8")
    code, out, _ = run(capsys, "plan", "--model", llama_file, "--tp", "2", "--config", str(file), "--no-vocab-padding",
                       "--no-kv-replication", "--unknown", "replicate", "--sequence-parallel")
    assert code == DONE and "decided by you" in out
    assert read_config(str(file)) == {"overrides": [{"match": "*.mlp.*", "replicate": True}]}
    for text, said in (("auto_tp_config: {overides: []}", "did you mean 'overrides'"), ("- 1", "holds no mapping")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=said):
            read_config(str(file))


def test_the_dispatcher_is_open_for_other_commands():
    assert {"plan", "explain", "verify", "reshard", "doctor"} <= set(COMMANDS)


def test_a_file_that_cannot_be_written_fails_with_its_name(capsys, llama_file):
    code, _, err = run(capsys, "plan", "--model", llama_file, "--json", "/proc/nothing/plan.json")
    assert code == REFUSED and "/proc/nothing" in err


@pytest.mark.parametrize("text, words", [("{bad", "is no JSON"), ("[1]", "holds a list, where an object")])
def test_a_file_that_is_no_inventory_is_named(tmp_path, text, words):
    file = tmp_path / "inventory.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"inventory.json' {words}"):
        take_inventory(file)
    (tmp_path / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="has no 'weight_map'"):
        take_inventory(tmp_path)


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("name, reason", [("", "Is a directory"), ("llama.json/plan", "Not a directory|File exists")])
def test_a_file_that_cannot_be_written_is_named_with_the_reason(llama_file, tmp_path, capsys, option, name, reason):
    code, _, err = run(capsys, "plan", "--model", llama_file, "--tp", "2", option, str(tmp_path / name))
    assert code == REFUSED and "Errno" not in err
    assert re.search(f"failed: cannot write .*: ({reason}); give a file in a folder", err)


def test_the_hash_tells_contents_apart_that_share_rows_and_reasons():
    made = plan(inventories.folders()["llama"], tp=2)
    again = ShardingPlan.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.hash == made.hash
    path = "model.layers.0.self_attn.q_proj.weight"
    again.parameters[path] = again.parameters[path]._replace(grad_sum_axes=("tp",))
    assert again.hash != made.hash
