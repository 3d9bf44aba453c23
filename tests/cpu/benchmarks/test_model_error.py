"""benchmarks/model_error.py on a tiny model: each variant rounds what it says, and nothing else."""

import json

import pytest
import torch

from benchmarks import model_error
from deep_gemm.nn import Fp8Linear
from examples.llama import TINY


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(model_error, "CPU_SIZES", TINY)
    monkeypatch.setattr(model_error, "TOKENS", (0, 24))


def test_every_variant_has_a_cosine(tmp_path, capsys):
    out = tmp_path / "error.json"
    assert model_error.main(["--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert 0.9990 < result["linear"] < 0.9996, "two operands with a rounding error of 2.6 % each"
    for std in model_error.EMBEDDING_STDS:
        rows = {row["variant"]: row["cosine"] for row in result["rows"] if row["embedding_std"] == std}
        assert rows.keys() == model_error.VARIANTS.keys()
        alone = min(rows["weights alone"], rows["activations alone"])
        assert rows["all"] > 0.9999 if std == 1.0 else 0.99 < rows["all"] < alone < rows["bf16"] < 1
        blocks = [row for row in result["blocks"] if row["embedding_std"] == std]
        assert [row["block"] for row in blocks] == [0, 1] and blocks[1]["accumulated"] <= blocks[1]["stream"]
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in model_error.VARIANTS)


def test_layers_are_left_out_by_their_names():
    model = model_error.VARIANTS["all but attention"](model_error.make_exact(TINY, "cpu", 0.02))
    left = {name for name, layer in model.named_modules() if type(layer) is torch.nn.Linear}
    assert left == {f"blocks.{i}.attention.{name}" for i in (0, 1) for name in ("qkv_proj", "o_proj")} | {"lm_head"}
    assert isinstance(model.blocks[1].mlp.down_proj, Fp8Linear)


def test_embeddings_have_the_deviation_asked_for():
    for std in model_error.EMBEDDING_STDS:
        assert float(model_error.make_exact(TINY, "cpu", std).embedding.weight.std()) == pytest.approx(std, rel=1e-5)
