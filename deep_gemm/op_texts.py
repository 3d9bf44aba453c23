"""The sentences that docstrings of several ops share; deep_gemm.op_docs puts them together."""

SCALING = """\
With scales, A[i, k] stands for A[i, k] * scale_a[i, k // 128], and B[j, k] for
B[j, k] * scale_b[j // 128, k // 128]. The product of every 128 of K is added up in FP32, and the result is rounded
once.
"""

FP8_ONLY = """\
Both operands are FP8: this is the op of the name without fp4, with recipe_a and recipe_b in other places. FP4 is SM100
only.
"""

ROUNDING = """\
Sums are FP32 and rounded once.
"""

EVERYWHERE = """\
CPU tensors run the reference. Call the op once before you capture it in a CUDA graph: the first call may compile and
load a kernel.
"""

SUM = """\
    d: bfloat16 or float32 [m, n], written. It shares no memory with A, B and their scales.
    c: [m, n] of the dtype of d, rows contiguous at any pitch, or None. It may be d itself; otherwise it shares no
        memory with d.
"""

GROUPED_RECIPE = """\
    recipe: granularity of the scales: (1, 128, 128), the default, or (1, 1, 128), with which scale_b has one row for
        each row of B, not for 128.
"""

COMPILED_DIMS = """\
    compiled_dims: subset of 'mnk' that become constants of the kernel; None lets the library decide.
"""
DISABLE = """\
    disable_ue8m0_cast: accepted for compatibility; scales stay FP32 on SM90.
"""
OWN_RECIPE = """\
    recipe_a, recipe_b: in place of recipe, the granularity of each operand: (1, 128) of A with (128, 128) or (1, 128)
        of B. Others are SM100 only.
"""
EPILOGUE = """\
    epilogue: must be None; others are SM100 only.
"""
OVERLAP = """\
    enable_overlap: signal the rows of d that are stored, so that another kernel can send them on meanwhile. The call
        then returns (64, threshold), else None: once signal[group * ceil(max_m / 64) + row // 64] is threshold =
        8 * ceil(n / 8), which it reaches and does not exceed, what reads it with acquire semantics sees these rows.
    signal: int32 with at least num_groups * ceil(max_m / 64) elements, contiguous, zeroed by the caller, on the device
        of d, apart from the other operands; only with enable_overlap. Blocks of 64 rows without rows in use stay 0.
    max_block_n: None or an int >= 1, accepted for compatibility: it limits no tile.
"""
FACTORS = """\
    alpha, beta: finite factors of the product and of c; c is not read where beta is 0. An alpha of None is 1.
"""
PSUM_ROWS = """\
    use_psum_layout: m_indices holds the row behind the last one of each group, ascending. The first group starts at row
        0, every other one at the end of the one before, rounded up to a multiple of the alignment; an empty group ends
        there, or where the one before does. Rows between the groups and behind the last one are padding.
"""
PSUM_K = """\
    use_psum_layout: ks_tensor, which must be given, holds where each group ends along K, ascending. The first group
        starts at 0, every other one at the end of the one before, rounded up to a multiple of 128. A K may be any
        number; what lies between the groups may hold anything and has no effect. Blocks, and scales, are those of
        groups rounded up to 128. ks may be None; else it is only checked: rounded up to 128, it fits A.
"""
ZERO_PADDING = """\
    ensure_zero_padding: with use_psum_layout, padding rows of d become +0, whatever A holds there; else they are
        undefined. Without use_psum_layout they always become +0.
    expected_m_for_psum_layout: the rows of a group on average, an int >= 0: a hint for the choice of a config, where
        they fill a part of the alignment; None or 0: not known.
"""
STREAM = """\
    stream: torch.cuda.Stream or raw handle to launch on instead of the current stream; torch.compile breaks the graph
        at it.
"""

PITCHES = """\
The rows of a matrix are contiguous in memory. Rows of A, B and D, and groups of them, start 16-byte aligned, at pitches
that are multiples of 16 bytes; slices of wider tensors are right. Scales may have any strides. The stride of a
dimension of size 1 is ignored. """

TRANSPOSING = """
The kernels read FP8 along K. An operand that is contiguous along its other dimension is first copied by a transposing
kernel, into memory of torch's allocator, on the same stream: one more launch for A, B and all groups, on no more SMs
than set_num_sms allows, that reads and writes every byte of the operands once.
"""
TRANSPOSING_B = """
The kernels read FP8 along K. A B that is contiguous along n is first copied by a transposing kernel, into memory of
torch's allocator, on the same stream: one more launch for all groups.
"""

RAISES = """
Raises:
    ArgumentError: not a tensor, a missing or unsupported argument, a d that requires grad while grad mode is on.
    DtypeError, ShapeError, LayoutError: an operand of the wrong dtype, rank or size, strides, alignment or overlap.
    DeviceError: operands on several devices, no driver, or a GPU other than SM90.
    CompileError, LaunchError: the kernel could not be compiled, loaded or launched."""

NO_K = "m = 0 or n = 0: nothing happens. k = 0: the product is 0.\n"
