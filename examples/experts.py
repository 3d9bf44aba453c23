"""A mixture-of-experts network for examples/llama.py: a router and its experts, in BF16 or in FP8.

In BF16 the experts run on this package's BF16 grouped products, for inference alone: a loop of dense layers over the
experts would make the host wait for the routing and could not be captured in a CUDA graph. `quantize_` puts
Fp8Experts in their place.
"""

import torch

import deep_gemm
from deep_gemm.nn.experts import MASKED_TOKENS
from deep_gemm.nn.routing import nn_combine, nn_spread, place_contiguous, place_masked


class Bf16Experts(torch.nn.Module):
    """SwiGLU networks in BF16, which places tokens as Fp8Experts does and has no backward.

    Attributes: `gate_up_proj` [experts, 2 * width, hidden], gate first. `down_proj` [experts, hidden, width].
    """

    def __init__(self, experts: int, hidden: int, width: int):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = torch.nn.Parameter(torch.empty(experts, hidden, width))
        self.act_fn = torch.nn.SiLU()  # by which quantize_ knows what is computed

    @torch.no_grad()
    def forward(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum [tokens, hidden] of every token's experts, of BF16 x [tokens, hidden]."""
        experts, tokens = len(self.down_proj), len(x)
        is_masked = tokens <= MASKED_TOKENS
        placement = (place_masked if is_masked else place_contiguous)(index, experts)
        expected_m = deep_gemm.ceil_div(index.numel(), experts)

        def multiply(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            d = rows.new_empty(*rows.shape[:-1], weight.shape[1])
            if is_masked:
                deep_gemm.m_grouped_bf16_gemm_nt_masked(rows, weight, d, placement.groups, expected_m)
            else:
                hint = {"use_psum_layout": True, "expected_m_for_psum_layout": expected_m}
                deep_gemm.m_grouped_bf16_gemm_nt_contiguous(rows, weight, d, placement.groups, **hint)
            return d

        spread = nn_spread(x, placement.rows, None, placement.num_rows, False)
        spread = spread.view(experts, tokens, -1) if is_masked else spread
        gate, up = multiply(spread, self.gate_up_proj).chunk(2, dim=-1)
        out = multiply(self.act_fn(gate) * up, self.down_proj)
        return nn_combine(out.view(-1, x.shape[1]), placement.rows, weights)


class Moe(torch.nn.Module):
    """A router, which chooses `top_k` experts for each token, and the experts."""

    def __init__(self, hidden: int, width: int, experts: int, top_k: int):
        super().__init__()
        self.top_k = top_k
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.experts: torch.nn.Module = Bf16Experts(experts, hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor like x."""
        rows = x.flatten(0, -2)
        return self.experts(rows, *self.route(rows)).view(x.shape)

    def route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return indices and weights [tokens, top_k] of the experts of each row."""
        weights, index = self.router(rows).float().softmax(-1).topk(self.top_k, dim=-1)
        return index, weights / weights.sum(-1, keepdim=True)
