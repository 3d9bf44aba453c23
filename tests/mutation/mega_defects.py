"""Defects that are planted into layers of experts across GPUs, into kernels of experts, and into what is recorded of
calls that are no problems; see run.py.
"""

from tests.mutation.defects import Defects

_HEADERS = "deep_gemm/include/deep_gemm"
_EMULATED = "tests/cpu/emulator/test_emulated"

MEGA_DEFECTS: Defects = {
    ("deep_gemm/mega/dispatch.py", "tests/cpu/ops/test_mega.py"): [
        ("counts.view(buffer.num_ranks, -1)", "counts"),
        ("tokens[chosen] + routing.first, targets", "tokens[chosen], targets"),
        ("known[:, choice] // buffer.num_local_experts, places", "0 * known[:, choice], places"),
    ],
    ("deep_gemm/mega/layer.py", "tests/cpu/ops/test_mega.py"): [
        ("    sym_buffer.topk_idx[len(y) :].fill_(-1)\n", ""),
        ("    if get_mk_alignment_for_contiguous_layout() != buffer.alignment:", "    if False:"),
        ("    buffer.is_broken = True\n", ""),
        ("limit=limit, is_interleaved=True", "limit=limit, is_interleaved=False"),
        ("    meet(MADE)\n", ""),
        ("        _check_stats(stats, y, l1_weights, l2_weights, sym_buffer)\n", "        pass\n"),
    ],
    ("deep_gemm/mega/operands.py", "tests/cpu/ops/test_mega.py"): [
        ("parts.transpose(1, 2).contiguous()", "parts.contiguous()"),
        ("halves[:, :, None, :, None]", "halves.flip(2)[:, :, None, :, None]"),
        ("    buf_topk_idx[count:].fill_(-1)\n", ""),
        ("    if _C.get_compile_mode():\n        return\n", ""),
    ],
    ("deep_gemm/mega/buffer.py", "tests/cpu/ops/test_mega.py"): [
        ("count_most_rows(choices, sizes.num_local_experts, sizes.alignment)", "choices"),
        ("        self.topk_idx.fill_(-1)\n", ""),
        ("channel=stage, timeout_ms=self._timeout_ms)", "channel=stage)"),
        ("1e-3 <= seconds <= MOST_SECONDS", "seconds <= MOST_SECONDS"),
    ],
    ("deep_gemm/mega/buffer.py", "tests/cpu/runtime/test_warm_up_calls.py"): [
        ("ceil_div(max(tokens, least) * sizes.num_topk", "ceil_div(tokens * sizes.num_topk"),
    ],
    ("deep_gemm/mega/layer.py", "tests/cpu/runtime/test_warm_up_calls.py"): [
        ("{_C.hold_expected_m(plain[0], hint) for hint in hints}", "hints"),
        ("expected_m_for_psum_layout=count_expected_rows(buffer, tokens)", "expected_m_for_psum_layout=None"),
    ],
    ("deep_gemm/selection.py", "tests/cpu/core/test_expected_rows.py"): [
        ("    if twin := _C.find_masked_twin(problem):\n        return [*own, twin]\n", ""),
        ("if served.op not in (problem.op, OP_KINDS[problem.op].sibling):", "if False:"),
        ('    fields.pop("expected_m", None)  # no sibling has it\n', ""),
    ],
    ("tuner/problems/workload.py", "tests/cpu/core/test_expected_rows.py"): [
        ("    if problem.expected_m and problem.expected_m < problem.alignment:\n", "    if problem.expected_m:\n"),
        ("        row += ceil_div(size, problem.alignment) * problem.alignment\n", "        row += size\n"),
        ("sizes[group] = min(size, problem.m - starts[-1])", "sizes[group] = size"),
    ],
    ("deep_gemm/identity.py", "tests/cpu/runtime/test_warm_up_calls.py"): [
        (" if problem.has_signals else text", " if False else text"),
        ("    if not isinstance(has_signals, bool):\n", "    if False:\n"),
    ],
    ("deep_gemm/recorded_calls.py", "tests/cpu/runtime/test_warm_up_calls.py"): [
        ("call.num_experts % call.num_ranks:", "False:"),
        ("if isinstance(call, PrenormCall) else call", ""),
    ],
    ("deep_gemm/warm_up.py", "tests/cpu/runtime/test_warm_up_calls.py"): [
        ("list_problems(_list_products(calls), None, target)", "list_problems(_list_products(calls), rows, target)"),
    ],
    ("deep_gemm/arguments.py", "tests/cpu/ops/test_operands.py tests/fault/test_native_objects.py"): [
        ("if holds_tensor(value) else ascii(value)", "if False else ascii(value)"),
        ("depth == 0 or any(", "any("),
        ("isinstance(values, Sequence) or isinstance(values, (str, bytes))", "isinstance(values, Sequence)"),
        ('isinstance(value, bool) or _is_torchs("Tensor", value)', '_is_torchs("Tensor", value)'),
    ],
    (f"{_HEADERS}/place_rows.cuh", f"{_EMULATED}_mega.py {_EMULATED}_ops.py"): [
        ("peers & ((1u << lane) - 1);", "peers & ((2u << lane) - 1);"),
        ("counters[warp][expert] = before;\n                before += number;", "before += number;"),
        ("numbers[expert] = expert * unit;", "numbers[expert] = 0;"),
        ("start += align_up(number, unit);", "start += number;"),
        ("if (lane >= step) start += below;", "start += below;"),
        ("return expert < num_experts ? u32(expert) : kNone;", "return u32(expert);"),
        ("if constexpr (kForm == PlaceForm::kMasked) share_rows();", ""),
        ("u32 at = choice / top_k * top_k;", "u32 at = 0;"),
    ],
    (f"{_HEADERS}/mega_pull.cuh", "tests/cpu/emulator/test_emulated_mega.py"): [
        ("place = first_token + token % tokens", "place = token % tokens"),
        ("expert < i64(local);", "expert <= i64(local);"),
    ],
    (f"{_HEADERS}/mega_combine.cuh", "tests/cpu/emulator/test_emulated_mega.py"): [
        ("if (expert < 0 || expert >= i64(num_experts)) return 0;", "if (expert < 0) return 0;"),
        ("        __syncthreads();\n", ""),
    ],
    (f"{_HEADERS}/spread_rows.cuh", "tests/cpu/emulator/test_emulated_ops.py"): [
        ("            if (row >= num_rows) continue;\n", ""),
        ("x + token * x_row + column", "x + token * chunks * 16 + column"),
        ("choice < (token + 1) * top_k", "choice + 1 < (token + 1) * top_k"),
        ("if constexpr (kWeighted) {", "if constexpr (false) {"),
    ],
    (f"{_HEADERS}/combine_rows.cuh", "tests/cpu/emulator/test_emulated_ops.py"): [
        ("if (row < num_rows) loaded", "if (row <= num_rows) loaded"),
        ("y + row * y_row + column", "y + row * chunks * 16 + column"),
        ("done < top_k; done += kAhead", "done < kAhead; done += kAhead"),
    ],
    ("deep_gemm/nn/row_kernels.py", "tests/cpu/emulator/test_emulated_ops.py"): [
        ("source.stride(0) * size)\n    places", "source.shape[1] * size)\n    places"),
        ("kWeighted=weights is not None", "kWeighted=False"),
    ],
    ("deep_gemm/group_rows.py", "tests/cpu/nn/test_experts.py tests/cpu/nn/test_fused.py"): [
        ("    order = flat.argsort(stable=True)\n", "    order = flat.argsort(stable=True, descending=True)\n"),
        ("(counts.cumsum(0) - counts)[flat[order]]", "counts.cumsum(0)[flat[order]]"),
        ("flat.where((flat >= 0) & (flat < num_groups), num_groups)", "flat.clamp(0, num_groups)"),
    ],
    ("deep_gemm/nn/routing.py", "tests/cpu/nn/test_experts.py tests/cpu/nn/test_routing.py"): [
        ("return rows.where(is_known, most), ", "return rows, "),
        ("return rows.where(is_known, num_experts * len(experts)), counts.int()", "return rows, counts.int()"),
        ("dense if dense.stride(-1) == 1 else dense.clone(memory_format=torch.contiguous_format)", "dense"),
        (".float().masked_fill_(~is_known[part, :, None], 0)", ".float()"),
        ("return out.masked_fill_(~is_known, 0)", "return out"),
        ("rows.where((rows >= 0) & (rows < num_rows), num_rows)", "rows"),
    ],
    ("deep_gemm/nn/grouped_ops.py", "tests/cpu/nn/test_routing.py"): [
        ("a_scales = nn_spread(scales, rows,", "a_scales = nn_spread(scales, rows.flip(0),"),
        ("values.view(torch.bfloat16), rows, None", "values.view(torch.bfloat16), rows.flip(0), None"),
    ],
    ("deep_gemm/nn/grouped.py", "tests/cpu/nn/test_routing.py"): [
        ('self._check_expected(x, expected_m, "undefined padding")', "expected_m"),
    ],
}
