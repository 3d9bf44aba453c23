"""benchmarks/models.py on the CPU with a tiny model: its rows, and what it makes of names of kernels and of faults."""

import importlib.metadata
import json
import sys
import types

import pytest
import torch

from benchmarks import models
from benchmarks.stamp import write_result
from deep_gemm.jit.plain_kernels import plain_symbol
from deep_gemm.nn import Fp8Linear
from examples.llama import TINY, make_model

MODELS = ("bf16", "fp8")


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("name", models.FAMILIES)
def test_rows_hold_times_memory_and_logits_of_both_models(tmp_path, name):
    check_rows(tmp_path / "models.json", name)


@pytest.mark.parametrize("name", ["llama_8b", "qwen3_30b"])
def test_models_of_transformers_are_timed_in_the_same_way(tmp_path, name):
    version = pytest.importorskip("transformers", minversion="5.0").__version__
    assert check_rows(tmp_path / "models.json", name, "--transformers")["transformers"] == version


def test_torchaos_layers_are_a_third_model(tmp_path, monkeypatch):
    seen = []

    def replace(model, config, filter_fn):
        """Round weights, as torchao would, which computes on a GPU only."""
        seen.append(config)
        for name, layer in model.named_modules():
            if filter_fn(layer, name):
                layer.weight = torch.nn.Parameter(layer.weight.to(torch.float8_e4m3fn).bfloat16(), requires_grad=False)

    package, part = types.ModuleType("torchao"), types.ModuleType("torchao.quantization")
    part.quantize_, part.PerRow = replace, lambda: "rows"
    part.Float8DynamicActivationFloat8WeightConfig = lambda granularity: granularity
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.quantization", part)
    monkeypatch.setattr(models.importlib.metadata, "version", lambda name: f"{name} 1")
    assert check_rows(tmp_path / "models.json", "llama_8b", "--torchao")["torchao"] == "torchao 1"
    assert seen == ["rows"]
    for row in json.loads((tmp_path / "models.json").read_text())["rows"]:
        assert len(row["torchao_ms"]) == 2 and row["torchao_speedup"] > 0
        assert 0.98 < row["torchao_cosine"] < 1 and row["torchao_cosine"] != row["cosine"]


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--transformers", "--compile"], "share no graph"),
        (["--transformers", "--model", "deepseek_v3"], "no fixed cache"),
        (["--torchao", "--model", "qwen3_30b"], "experts in BF16"),
    ],
)
def test_what_does_not_go_together(capsys, options, reason):
    with pytest.raises(SystemExit) as caught:
        models.main(options)
    assert caught.value.code == 2 and reason in capsys.readouterr().err


@pytest.mark.parametrize("is_gpu, is_named", [(True, False), (True, True), (False, False), (False, True)])
def test_a_run_on_the_cpu_replaces_no_record(tmp_path, capsys, is_gpu, is_named):
    record, out = tmp_path / "record.json", tmp_path / "out.json"
    write_result({"rows": []}, out if is_named else None, record, is_gpu)
    assert record.exists() == (is_gpu and not is_named) and out.exists() == is_named
    assert ("say nothing of the kernels" in capsys.readouterr().out) == (not is_gpu)


@pytest.mark.parametrize("library", ["transformers", "torchao"])
def test_a_library_that_is_not_there_is_named(capsys, monkeypatch, library):
    def find(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(models.importlib.metadata, "version", find)
    with pytest.raises(SystemExit) as caught:
        models.main([f"--{library}"])
    assert caught.value.code == 2 and f"--{library}: that library is not installed" in capsys.readouterr().err


def check_rows(out, name, *options) -> dict:
    """Run the benchmark, check its rows, and return what it says about the run."""
    assert models.main(["--rounds", "2", "--model", name, *options, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["meta"]["complete"] and result["meta"]["model"] == name
    assert [row["phase"] for row in result["rows"]] == ["prefill", "decode"]
    for row in result["rows"]:
        assert len(row["bf16_ms"]) == len(row["fp8_ms"]) == 2 and row["speedup"] > 0
        assert 0.985 < row["cosine"] < 1 and row["fp8_peak_mb"] < row["bf16_peak_mb"]
    return result["meta"]


@pytest.mark.full
@pytest.mark.parametrize("name", models.FAMILIES)
def test_compiled_blocks_are_whole_graphs_with_the_same_logits(monkeypatch, name):
    import torch._dynamo.testing

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(models, "BACKEND", counter)
    family = models.FAMILIES[name]
    sizes = family.cpu_sizes
    tokens = torch.randint(sizes.vocabulary, (2, 9))
    eager, compiled = (models.make_models(family.make, sizes, "cpu", flag) for flag in (False, True))
    with torch.no_grad():
        for name in MODELS:
            torch.testing.assert_close(compiled[name](tokens), eager[name](tokens), rtol=2e-2, atol=2e-3)
    kinds = len({type(block.mlp) for block in eager["bf16"].blocks})
    assert counter.frame_count == kinds * len(MODELS), "one graph serves all blocks of a kind"
    torch._dynamo.reset()


def test_both_models_have_the_same_weights():
    found = models.make_models(make_model, TINY, "cpu")
    assert torch.equal(found["bf16"].lm_head.weight, found["fp8"].lm_head.weight)
    layer = found["fp8"].blocks[0].mlp.down_proj
    assert isinstance(layer, Fp8Linear) and not layer.is_trainable


def test_kernels_are_told_apart_by_name():
    names = {"deep_gemm_fp8_gemm": "products", "nvjet_tst_64x8": "products", "deep_cast_rows": "casts"}
    names |= {"deep_gemm_fp8_paged_mqa_logits": "logits"}
    names |= {plain_symbol("scale_layout"): "casts", plain_symbol("mqa_metadata"): "logits"}
    names |= {"void at::native::elementwise_kernel<128>": "others", "deep_transpose_fp8": "others"}
    assert {name: models.classify(name) for name in names} == names


def test_a_fault_of_one_case_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "time_once", lambda run: 1 / 0)
    assert models.main(["--rounds", "1", "--out", str(tmp_path / "models.json")]) == 1
    rows = json.loads((tmp_path / "models.json").read_text())["rows"]
    assert all("ZeroDivisionError" in row["failed"] for row in rows) and len(rows) == 2
    assert models.main(["--time-budget", "-1", "--out", str(tmp_path / "models.json")]) == 3
