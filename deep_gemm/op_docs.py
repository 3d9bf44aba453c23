"""The docstrings of the public ops: a few templates, filled in from the rows of deep_gemm.ops."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deep_gemm import op_texts

if TYPE_CHECKING:
    from deep_gemm.ops import Op


@dataclass(frozen=True)
class _Template:
    """What the docstrings of some ops say.

    Attributes: `purpose`: what the ops are for, in the table of ops. `shapes`: of (A, its scales, B, its scales, D),
        as if both were "nt"; "" for scales that no op takes. `arguments`: the parameters after A and B that differ
        between families. `recipe`: the parameter of that name. `sizes`: what a size of 0 means. `scaling`: how FP8
        products are added up. `copies`: what happens to FP8 operands of the other major. `has_any_major`: BF16
        operands may be contiguous along either dimension. `text`: the whole docstring up to what it raises, of an op
        that is no product; `shapes` are then those of queries, keys and logits.
    """

    purpose: str
    shapes: tuple[str, str, str, str, str]
    formula: str
    summary: str = ""
    arguments: str = ""
    recipe: str = op_texts.GROUPED_RECIPE
    sizes: str = op_texts.NO_K
    scaling: str = op_texts.ROUNDING
    copies: str = op_texts.TRANSPOSING
    has_any_major: bool = False
    text: str = ""


_DENSE = _Template(
    purpose="one matrix product",
    shapes=("m, k", "m, ceil(k / 128)", "n, k", "ceil(n / 128), ceil(k / 128)", "m, n"),
    formula="d = alpha * ({a} @ {b}) + beta * c",
    summary="Compute {formula} from {operands} operands, on the current stream.",
    arguments=op_texts.SUM,
    recipe="""\
    recipe: granularity of the scales: (1, 128, 128), the default, or (1, 1, 128), with which scale_b has one row for
        each row of B, not for 128. Without a recipe, 1-D scales [m] and [n] on both sides are per row over all of K.
""",
    scaling=op_texts.SCALING,
    has_any_major=True,
)

_HEADS = replace(
    _DENSE,
    purpose="one matrix product; leaves the middle columns of each head of D as they are",
    shapes=(*_DENSE.shapes[:4], "m, heads * (left + mid + right)"),
    formula="d = {a} @ {b}",
    summary="Compute {formula} from {operands} operands, leaving out the middle columns of each head of d, on the"
    " current\nstream.",
    arguments="""\
    d: bfloat16 [m, heads * (left + mid + right)]. The `mid` columns of each head stay as they are; all others are
        written.
    head_splits: (left, mid, right), integers >= 0; n = heads * (left + right).
    recipe: granularity of the scales, None or (1, 128, 128).
""",
    recipe="",
)

_CONTIGUOUS = _Template(
    purpose="rows in groups, one group after the other",
    shapes=("m, k", "m, ceil(k / 128)", "num_groups, n, k", "num_groups, ceil(n / 128), ceil(k / 128)", "m, n"),
    formula="d[i] = {a}[i] @ {b_group}",
    summary="Compute {formula}, group being that of row i, from {operands} operands, on the current stream.",
    arguments="""\
    d: bfloat16 or float32 [m, n], written. It shares no memory with the other operands.
    m_indices: int32 [m], contiguous: the group of each row, or -1 for padding. The rows of every group start at a
        multiple of get_mk_alignment_for_contiguous_layout(). With use_psum_layout, int32 [num_groups]: where each group
        ends. Also called grouped_layout.
""",
    sizes="""\
m = 0, n = 0 or num_groups = 0: nothing happens. k = 0: d is 0.

Padding rows of d become +0, whatever A holds there. A row whose index is not the group of its tile becomes NaN on a
GPU; on the CPU it is an ArgumentError.
""",
    copies=op_texts.TRANSPOSING_B,
)

_MASKED = _Template(
    purpose="rows in groups, each with room for `max_m` rows",
    shapes=(
        "num_groups, max_m, k",
        "num_groups, max_m, ceil(k / 128)",
        "num_groups, n, k",
        "num_groups, ceil(n / 128), ceil(k / 128)",
        "num_groups, max_m, n",
    ),
    formula="d[group] = {a}[group] @ {b_group}",
    summary="Compute {formula} for the rows in use of each group, from {operands} operands, on the current\nstream.",
    arguments="""\
    d: bfloat16 or float32 [num_groups, max_m, n], written. It shares no memory with the other operands.
    masked_m: int32 [num_groups], contiguous: the number of rows in use of each group, within 0..max_m. The kernel
        reads it, so a CUDA graph may be replayed with other values. Nothing may write it while the kernel runs.
    expected_m: rows of a group on average, any int >= 0: a hint for the choice of a config, and for whether row-major
        scales are copied first. Also called expected_m_per_group.
""",
    sizes="""\
m = 0, n = 0 or num_groups = 0: nothing happens. k = 0: d is 0.

Rows of a group from masked_m on may be overwritten or not.
""",
    copies=op_texts.TRANSPOSING_B,
)

_K_GROUPED = _Template(
    purpose="K in groups: weight gradients of experts",
    shapes=("m, sum_k", "m, sum_k / 128", "n, sum_k", "n, sum_k / 128", "num_groups, m, n"),
    formula="d[group] = {a_group} @ {b_group} + c[group]",
    summary="Compute {formula} over the K of each group, from {operands} operands,\non the current stream.",
    arguments="""\
    d: float32 [num_groups, m, n], written. It shares no memory with A, B and their scales.
    ks: list or tuple of ints, the K of each group: multiples of 128, 0 allowed. Also called ks_cpu.
    ks_tensor: int32 [num_groups], contiguous: the same numbers on the device, where the kernel reads them; where they
        differ, these count. Without it the call copies ks there and waits for the copy. Also called grouped_layout.
    c: float32 [num_groups, m, n], rows contiguous, or None. It may be d itself; otherwise it shares no memory with d.
""",
    recipe="""\
    recipe: granularity of the scales, None or (1, 1, 128).
""",
    sizes="""\
m = 0, n = 0 or num_groups = 0: nothing happens. A group whose K is 0 has d = c, or 0.
""",
)

_EXPRESSION = """\
    expr: what is multiplied and added up: one of the expressions below, with or without spaces.
"""
_EINSUM = _Template(
    purpose="batched products, and sums of products, by an expression",
    shapes=("b, h, r", "b, h, ceil(r / 128)", "h, d, r", "h, ceil(d / 128), ceil(r / 128)", "b, h, d"),
    formula="d = einsum(expr, A, B) + c",
    summary="Compute {formula} from {operands} operands, on the current stream.",
    arguments=f"""\
    d: bfloat16 or float32 [b, h, d], written. It shares no memory with A, B and their scales.
    c: as d, rows contiguous, or None. It may be d itself; otherwise it shares no memory with d. A sum over b and k
        takes one with a float32 d only.
{_EXPRESSION}    use_cublaslt: let torch call the vendor's library instead; a sum over b and k then copies A and B
        first.
""",
    sizes="""

These are the shapes of 'bhr,hdr->bhd'. The others are
    'bhd,hdr->bhr'   A [b, h, d], B [h, d, r], D [b, h, r]
    'bhd,bhr->hdr'   A [b, h, d], B [b, h, r], D [h, d, r]: sums over b
    'bmk,bnk->mn'    A [b, m, k], B [b, n, k], D [m, n]: sums over b and k
Sums over b and k are cut into parts that are added up in a fixed order: repeated calls give the same bits.

A dimension of 0: nothing happens, but d = c, or 0, where there is nothing to add up.
""",
)

_FP8_EINSUM = replace(
    _EINSUM,
    purpose="batched products of FP8 operands by an expression",
    arguments=f"""\
    d: bfloat16 or float32 [b, h, d], written. It shares no memory with A, B and their scales.
    c: as d, rows contiguous, or None. It may be d itself; otherwise it shares no memory with d.
{_EXPRESSION}""",
    recipe="""\
    recipe: granularity of the scales: (1, 128, 128), the default, or (1, 1, 128), with which scale_b has a number for
        each row of B, not for 128: [h, d, ceil(r / 128)].
""",
    sizes="""

These are the shapes of 'bhr,hdr->bhd'. Scales cover 128 of the dimension that is summed up, wherever it lies. The other
expressions, with the scales of (1, 128, 128) and then those of B for (1, 1, 128), are
    'bhd,hdr->bhr'   A [b, h, d], [b, h, ceil(d / 128)]; B [h, d, r], [h, ceil(d / 128), ceil(r / 128)] or
                     [h, ceil(d / 128), r]; D [b, h, r]
    'bhd,bhr->hdr'   A [b, h, d], [ceil(b / 128), h, d]; B [b, h, r], [ceil(b / 128), h, ceil(r / 128)] or
                     [ceil(b / 128), h, r]; D [h, d, r]

A dimension of 0: nothing happens, but d = c, or 0, where there is nothing to add up.
""",
    scaling="""\
Each element of A and B is multiplied by its scale. The product of every 128 of K is added up in FP32, and the result is
rounded once.
""",
    copies="""
The kernels read FP8 along the dimension that is summed up. B of 'bhd,hdr->bhr', and A and B of 'bhd,bhr->hdr', are
contiguous along another one in memory, and are first copied by a transposing kernel, into memory of torch's allocator,
on the same stream: one more launch for each, that reads and writes every byte once. A B that is made [h, r, d] in
memory, as a view [h, d, r], is read as it is.
""",
)

_LOGITS_TYPES = """\
    logits_dtype: torch.float32 (also None, the default) or torch.bfloat16: the type of the result, rounded once.
"""

_LOGITS = _Template(
    purpose="attention index logits of queries over keys",
    shapes=("tokens, heads, head_dim", "", "n, head_dim", "", "tokens, n"),
    formula="logits[i, j] = (sum(relu(q[i] @ k[j]) * weights[i])) * scale[j]",
    text=f"""\
Compute logits[i, j] = (sum over heads h of relu(q[i, h] . k[j]) * weights[i, h]) * scale[j] for the positions
start[i] <= j < end[i] that token i sees, on the current stream.

Sums are FP32.
{op_texts.EVERYWHERE}
Args:
    q: float8_e4m3fn [tokens, heads, head_dim], or a pair (q, None); heads a multiple of 8 up to 128, head_dim 32, 64 or
        128. Scales of q belong into the weights. A pair with scales is FP4: SM100 only.
    kv: pair (keys, scales): keys float8_e4m3fn [n, head_dim], scales float32 [n], contiguous.
    weights: float32 [tokens, heads], rows contiguous.
    cu_seq_len_k_start, cu_seq_len_k_end: int32 [tokens], contiguous: the range of each token, cut to 0..n.
    clean_logits: positions that a token does not see become -inf. If False, a GPU leaves them as they were allocated,
        and the CPU makes them 0. An int here is max_seqlen_k, as newer versions of the API have it.
    max_seqlen_k: if > 0, the result has this many columns, row i begins at position start[i], and nothing is cleaned.
{_LOGITS_TYPES}    schedule_meta: must be None; a schedule of keys without pages is SM100 only.
{op_texts.STREAM}
Returns: [tokens, n] or [tokens, max_seqlen_k], a new tensor whose rows start at multiples of 64 elements.

Heads and tokens of q lie at any multiple of 16 bytes, keys and weights at any pitch of such; all of these and the
scales start 16-byte aligned. No tokens or no columns: nothing happens.
""",
)

_PAGED_LOGITS = _Template(
    purpose="attention index logits of the last tokens of sequences over keys in pages",
    shapes=(
        "sequences, next_n, heads, head_dim",
        "",
        "pages, block_kv, 1, head_dim + 4",
        "",
        "sequences * next_n, max_context_len",
    ),
    formula="logits[i, j] = (sum(relu(q[i] @ k[j]) * weights[i])) * scale[j]",
    text=f"""\
Compute logits[i, j] = (sum over heads h of relu(q[i, h] . k[j]) * weights[i, h]) * scale[j] for the positions j that
token i of all sequences sees, on the current stream.

Sums are FP32. Lengths, pages and schedule are read on the device, so a CUDA graph may be replayed with others.
{op_texts.EVERYWHERE}
Args:
    q: float8_e4m3fn [sequences, next_n, heads, head_dim], or a pair (q, None); heads a multiple of 8 up to 128,
        head_dim 32, 64 or 128, next_n 1 to 8. Scales of q belong into the weights. A pair with scales is FP4: SM100
        only.
    kv_cache: uint8 [pages, block_kv, 1, head_dim + 4], block_kv 32 or 64: each page holds block_kv * head_dim bytes of
        FP8 keys, then block_kv FP32 scales. Pages lie at any multiple of 16 bytes.
    weights: float32 [sequences * next_n, heads], rows contiguous.
    context_lens: int32 [sequences]: token t sees the positions j <= length - next_n + t. Or int32 [sequences, next_n],
        rows contiguous: token t sees j < length[t].
    block_table: int32 [sequences, pages of a sequence], rows contiguous: the page of each block_kv positions. Entries
        behind the length of a sequence are not read.
    schedule_meta: int32 [num_sms + 1, 2], from get_paged_mqa_logits_metadata for the same lengths; num_sms need not be
        that of the device.
    max_context_len: columns of the result; longer sequences are cut.
    clean_logits: positions that a token does not see become -inf. If False, a GPU leaves them as they were allocated,
        and the CPU makes them 0.
{_LOGITS_TYPES}\
    indices: int32 [sequences] or None: rows of the same number are of one request, whose lengths and pages each of them
        has. A hint, which changes no result.
{op_texts.STREAM}
Returns: [sequences * next_n, max_context_len], a new tensor whose rows start at multiples of 64 elements.

No sequences or no columns: nothing happens.
""",
)

_METADATA = _Template(
    purpose="the schedule of paged attention index logits",
    shapes=("sequences, next_n", "", "sequences", "", "num_sms + 1, 2"),
    formula="where the share of keys of each slot begins",
)

#: The texts of every template of deep_gemm.ops.
_TEMPLATES = {
    "dense": _DENSE,
    "heads": _HEADS,
    "contiguous": _CONTIGUOUS,
    "masked": _MASKED,
    "k_grouped": _K_GROUPED,
    "einsum": _EINSUM,
    "fp8_einsum": _FP8_EINSUM,
    "hc_prenorm": _Template(
        purpose="the projection before a hyper-connection's norm, with sums of squares",
        shapes=("m, k", "", "n, k", "", "m, n"),
        formula="d = {a} @ {b}, sqr_sum[i] = sum(A[i] ** 2)",
    ),
    "logits": _LOGITS,
    "paged_logits": _PAGED_LOGITS,
    "metadata": _METADATA,
    "vendor": _Template(
        purpose="cuBLASLt on BF16 or unscaled FP8, for comparison",
        shapes=_DENSE.shapes,
        formula="d = {a} @ {b} + c",
    ),
    "syrk": _Template(
        purpose="a matrix, or each of a batch, with its transpose, by the vendor's library, as Muon needs it",
        shapes=("m, k", "", "", "", "m, m"),
        formula="d = A @ A.mT",
    ),
    "symm": _Template(
        purpose="a symmetric matrix, or each of a batch, with another, by the vendor's library",
        shapes=("m, m", "", "n, m", "", "m, n"),
        formula="d = A @ B",
    ),
}


def formula(op: "Op") -> str:
    """Return what an op computes, e.g. "d = A @ B.T"."""
    is_a_transposed, is_b_transposed = op.layout[0] == "t", op.layout[1] == "n"
    a_group = "A_group.T" if is_a_transposed else "A_group"
    if op.docs_template == "k_grouped":
        b_group = "B_group" if is_b_transposed else "B_group.T"
    else:
        b_group = "B[group]" if is_b_transposed else "B[group].T"
    a, b = "A.T" if is_a_transposed else "A", "B" if is_b_transposed else "B.T"
    return _TEMPLATES[op.docs_template].formula.format(a=a, b=b, a_group=a_group, b_group=b_group)


def get_purpose(op: "Op") -> str:
    """Return what an op is for, as the table of ops says it."""
    purpose = _TEMPLATES[op.docs_template].purpose
    return f"{purpose}; FP8 operands under DeepGEMM's name for FP8 or FP4 ones" if op.takes_fp4 else purpose


def list_shapes(op: "Op") -> list[str]:
    """Return the shapes of A, B and D in the caller's orientation."""
    a, _, b, _, d = _shapes(op)
    return [shape for shape in (a, b, d) if shape]


def make_docstring(op: "Op") -> str:
    """Return the docstring of a native op."""
    template = _TEMPLATES[op.docs_template]
    if template.text:
        return template.text + op_texts.RAISES
    summary = template.summary.format(formula=formula(op), operands="scaled FP8" if op.is_fp8 else "BF16")
    rounding = template.scaling if op.is_fp8 else op_texts.ROUNDING
    if op.takes_fp4:
        rounding = f"{op_texts.FP8_ONLY}\n{rounding}"
    sections = [f"{summary}\n\n{rounding}{op_texts.EVERYWHERE}\nArgs:\n", _describe_inputs(op), template.arguments]
    names = {parameter.name for parameter in op.parameters}
    if "recipe" in names:
        sections.append(template.recipe)
    texts = {
        "recipe_a": op_texts.OWN_RECIPE,
        "compiled_dims": op_texts.COMPILED_DIMS,
        "disable_ue8m0_cast": op_texts.DISABLE,
        "use_psum_layout": op_texts.PSUM_K if op.docs_template == "k_grouped" else op_texts.PSUM_ROWS,
        "ensure_zero_padding": op_texts.ZERO_PADDING,
        "alpha": op_texts.FACTORS,
        "epilogue": op_texts.EPILOGUE,
        "signal": op_texts.OVERLAP,
        "stream": op_texts.STREAM,
    }
    sections += [text for name, text in texts.items() if name in names]
    sections += [
        "\n",
        op_texts.PITCHES + template.sizes,
        "" if not op.is_fp8 or op.is_blocks else template.copies,
        op_texts.RAISES,
    ]
    return "".join(sections)


def _shapes(op: "Op") -> tuple[str, ...]:
    """Return the shapes of (A, its scales, B, its scales, D) in the caller's orientation."""
    a, scale_a, b, scale_b, d = _TEMPLATES[op.docs_template].shapes
    if op.is_blocks:
        return "[m * sum_k]", f"[{scale_a}]", "[n * sum_k]", f"[{scale_b}]", f"[{d}]"
    inputs = [_orient(shape, op.layout[0] == "t") for shape in (a, scale_a)]
    return (*inputs, *(_orient(shape, op.layout[1] == "n") for shape in (b, scale_b)), f"[{d}]")


def _orient(shape: str, is_transposed: bool) -> str:
    """Return a shape in brackets, its last two dims exchanged where wanted; "" where there is no such operand."""
    if ", " not in shape:
        return f"[{shape}]" if shape else ""
    *groups, rows, columns = shape.split(", ")
    return f"[{', '.join([*groups, columns, rows] if is_transposed else [*groups, rows, columns])}]"


def _describe_inputs(op: "Op") -> str:
    a, scale_a, b, scale_b, _ = _shapes(op)
    if not op.is_fp8:
        both = "    Both may be contiguous along either dimension; the kernels read all of them as they are.\n"
        majors = both if _TEMPLATES[op.docs_template].has_any_major else ""
        return f"    a: A bfloat16 {a}.\n    b: B bfloat16 {b}.\n{majors}"
    if op.is_blocks:
        a, b = (
            f"{shape}, contiguous: [{rows}, k] of one group after the other" for shape, rows in ((a, "m"), (b, "n"))
        )
    return (
        f"    a: pair (A, scale_a): A float8_e4m3fn {a},\n        scale_a float32 {scale_a}.\n"
        f"    b: pair (B, scale_b): B float8_e4m3fn {b},\n        scale_b float32 {scale_b}.\n"
    )
