"""The example's transformer on the CPU: attention over a cache, training in FP8 beside BF16, and its command."""

import itertools
import json

import pytest
import torch

from deep_gemm.nn import Fp8Experts, Fp8Linear, quantize_
from deep_gemm.testing import calc_diff
from examples import experts, llama, train_llama


def make_plain(name: str, sizes: llama.Sizes) -> torch.nn.Module:
    """Return a model in FP32: that of examples/llama.py, or of transformers."""
    if name == "transformers":
        pytest.importorskip("transformers", minversion="5.0")
        from examples import transformers_models

        return transformers_models.make_model(sizes, "cpu", torch.float32)
    return llama.make_model(sizes, "cpu", torch.float32)


#: The experts of examples/experts.py compute in BF16 only.
PLAIN = [("llama", llama.TINY), ("transformers", llama.TINY), ("transformers", llama.TINY_MOE)]


@pytest.mark.parametrize("name, sizes", PLAIN)
def test_decoding_over_a_cache_is_prefill(name, sizes):
    model, tokens = make_plain(name, sizes), torch.randint(64, (2, 6))
    with torch.no_grad():
        wanted, cache = model(tokens), model.make_cache(2, 9)
        for position in range(6):
            found = model(tokens[:, position : position + 1], cache, torch.tensor([position]))
            torch.testing.assert_close(found[:, 0], wanted[:, position])
        torch.testing.assert_close(model(tokens, is_last_only=True), wanted[:, -1:])
        random = model.make_cache(2, 9, is_random=True)
        assert not torch.allclose(model(tokens[:, :1], random, torch.tensor([5]))[:, 0], wanted[:, 0])


@pytest.mark.parametrize("name, sizes", PLAIN)
def test_attention_is_causal_and_knows_positions(name, sizes):
    model = make_plain(name, sizes)
    tokens = torch.tensor([[1, 2, 3, 4], [2, 1, 3, 9]])
    with torch.no_grad():
        logits = model(tokens)
        other = model(torch.tensor([[1, 2, 3, 5]]))
    torch.testing.assert_close(logits[0, :3], other[0, :3])
    assert calc_diff(logits[0, 3], other[0, 3]) > 1e-3
    assert calc_diff(logits[0, 2], logits[1, 2]) > 1e-6, "the order of tokens has no effect"


@pytest.mark.full
def test_fp8_training_follows_bf16():
    plan = train_llama.CPU_PLAN._replace(steps=10, sequences=2)
    result = train_llama.compare(plan, "cpu")
    losses = {name: result[name]["losses"] for name in ("bf16", "fp8")}
    assert losses["fp8"][-1] < losses["fp8"][0] - 0.3 and losses["fp8"] != losses["bf16"]
    assert abs(result["gap"]) < train_llama.BAND and result["is_right"]
    assert 0.998 < result["cosine"]["initial"] < result["cosine"]["trained"] < 1 and result["cosine"]["trained"] > 0.999


def test_all_but_the_head_are_fp8():
    model = quantize_(llama.make_model(llama.TINY, "cpu", torch.float32))
    assert sum(isinstance(layer, Fp8Linear) for layer in model.modules()) == 4 * llama.TINY.layers
    assert type(model.lm_head) is torch.nn.Linear


def test_the_corpus_is_a_chain_with_few_successors():
    text = train_llama.Corpus(64, "cpu").draw(8, 500)
    assert torch.equal(text, train_llama.Corpus(64, "cpu").draw(8, 500))
    followers = {int(token): set() for token in text.unique()}
    for row in text.tolist():
        for token, following in itertools.pairwise(row):
            followers[token].add(following)
    assert max(map(len, followers.values())) == len(train_llama.SUCCESSORS)
    assert 1.2 < train_llama.get_floor() < 1.21


def test_the_command_writes_losses_and_says_when_the_band_is_left(tmp_path, capsys, monkeypatch, few_sources):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = train_llama.CPU_PLAN._replace(sequences=1, length=16)
    monkeypatch.setattr(train_llama, "CPU_PLAN", plan)
    arguments = ["--steps", "2", "--out", str(tmp_path / "losses.json"), "--plot", str(tmp_path / "losses.png")]
    assert train_llama.main(arguments) == 0
    found = json.loads((tmp_path / "losses.json").read_text())
    assert len(found["fp8"]["losses"]) == 2 and found["meta"]["plan"]["steps"] == 2
    assert "FP8 ends" in capsys.readouterr().out and (tmp_path / "losses.png").stat().st_size > 5000
    monkeypatch.setattr(train_llama, "BAND", -1.0)
    assert train_llama.main(arguments[:2]) == 1


def run_experts_plainly(moe: experts.Moe, x: torch.Tensor) -> torch.Tensor:
    """Return a mixture's output in FP32: every expert on every token, the unchosen ones with weight 0."""
    scores = moe.router(x).float().softmax(-1)
    chosen = scores.topk(moe.top_k)
    gates = torch.zeros_like(scores).scatter(1, chosen.indices, chosen.values / chosen.values.sum(-1, keepdim=True))
    out = torch.zeros(x.shape)
    for expert, (gate_up, down) in enumerate(zip(moe.experts.gate_up_proj.float(), moe.experts.down_proj.float())):
        gate, up = (x.float() @ gate_up.t()).chunk(2, -1)
        out += gates[:, expert, None] * ((torch.nn.functional.silu(gate) * up) @ down.t())
    return out


@pytest.mark.parametrize("tokens", [5, 70])  # masked, contiguous
def test_experts_in_bf16_and_fp8_are_dense_ones(tokens):
    model = llama.make_model(llama.TINY_MOE, "cpu", torch.bfloat16).requires_grad_(False)
    moe, x = model.blocks[0].mlp, torch.randn(tokens, 128, dtype=torch.bfloat16)
    wanted = run_experts_plainly(moe, x)
    assert calc_diff(moe(x), wanted) < 5e-5
    quantize_(model.eval())
    assert isinstance(moe.experts, Fp8Experts) and type(moe.router) is torch.nn.Linear
    assert 5e-5 < calc_diff(moe(x), wanted) < 5e-3
