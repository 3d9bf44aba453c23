"""The table of public ops: one row for each, from which come the builtins, their signatures and docstrings, the
`torch.library` schemas, what torch.compile records, the exports of the package and the table of the documentation.

The op kind says whether operands are FP8 pairs `(data, scales)` or BF16 matrices. Parameters are described in
deep_gemm.op_parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from deep_gemm import _C, hc_prenorm, logits, op_docs, vendor
from deep_gemm.fields import OP_KINDS
from deep_gemm.op_parameters import REQUIRED, Parameter, take


@dataclass(frozen=True)
class Op:
    """A row of the table.

    Attributes: `name`: of the public function. `docs_template`: the docstring template, which also gives the shapes
        of its operands. `kind`: its op kind in problems, empty for ops without one. `layout`: the memory of A, then of
        B: "nt", "nn", "tn" or "tt". `other_names`: further exports of the same function. `module`: where the function
        of an op without a kind is. `takes_fp4`: the name says that operands may be FP4, which
        SM90 refuses.
    """

    name: str
    docs_template: str
    kind: str
    layout: str
    parameters: tuple[Parameter, ...]
    other_names: tuple[str, ...] = ()
    module: ModuleType = vendor
    takes_fp4: bool = False

    @property
    def is_fp8(self) -> bool:
        """Whether operands are FP8."""
        return bool(self.kind) and OP_KINDS[self.kind].is_fp8

    @property
    def is_logits(self) -> bool:
        """Whether the op computes attention logits, which it returns."""
        return bool(self.kind) and OP_KINDS[self.kind].is_logits

    @property
    def returns_tensor(self) -> bool:
        """Whether the op returns a new tensor, not None."""
        return not any(parameter.name == "d" for parameter in self.parameters)

    @property
    def pairs(self) -> tuple[str, ...]:
        """The parameters that are pairs (data, scales)."""
        names = ("a", "b", "kv") if self.is_fp8 else ()
        return tuple(parameter.name for parameter in self.parameters if parameter.name in names)

    @property
    def is_blocks(self) -> bool:
        """Whether A and B are 1-D: the matrices of one group of K after the other."""
        return self.kind.startswith("k_grouped") and self.layout == "nt"

    @property
    def num_required(self) -> int:
        """How many parameters must be given: the first ones."""
        return sum(parameter.default is REQUIRED for parameter in self.parameters)

    @property
    def num_positional(self) -> int:
        """How many parameters need not be named: the first ones."""
        return sum(not parameter.is_keyword_only for parameter in self.parameters)

    @property
    def signature(self) -> str:
        """The signature in Python's syntax, e.g. "(a, b, d, c=None, *, stream=None)"."""
        texts = [parameter.text for parameter in self.parameters]
        if self.num_positional < len(texts):
            texts.insert(self.num_positional, "*")
        return f"({', '.join(texts)})"

    @property
    def schema(self) -> str:
        """The schema of the op in deep_gemm.library, in which an FP8 pair is two tensors."""
        texts = []
        for parameter in self.parameters:
            if parameter.is_keyword_only and parameter.schema and "*" not in texts:
                texts.append("*")
            if parameter.name in self.pairs:
                texts += [f"Tensor {parameter.name}", f"Tensor scale_{parameter.name}"]
            elif parameter.schema:
                texts.append(parameter.schema)
        return f"({', '.join(texts)}) -> {'Tensor' if self.returns_tensor else '()'}"


def _by_position(parameters: tuple[Parameter, ...], names: str) -> tuple[Parameter, ...]:
    """Return the parameters with those of these names as ones that need not be named."""
    return tuple(replace(one, is_keyword_only=False) if one.name in names.split() else one for one in parameters)


_FP8_OPTIONS = "recipe compiled_dims disable_ue8m0_cast"
_OWN_RECIPES = "recipe_a recipe_b"
_OVERLAP = "enable_overlap max_block_n signal"
_DENSE = {
    "fp8": take(f"a b d c {_FP8_OPTIONS} alpha beta {_OWN_RECIPES} epilogue stream"),
    "bf16": _by_position(take("a b d c compiled_dims alpha beta epilogue stream"), "alpha"),
}
_PSUM = "use_psum_layout ensure_zero_padding expected_m_for_psum_layout"
_CONTIGUOUS = {
    "fp8": take(f"a b d m_indices {_FP8_OPTIONS} {_OWN_RECIPES} {_PSUM} epilogue stream"),
    "bf16": _by_position(take(f"a b d m_indices compiled_dims {_PSUM} epilogue stream"), _PSUM),
}
_MASKED = {
    "fp8": take(f"a b d masked_m expected_m {_FP8_OPTIONS} {_OWN_RECIPES} {_OVERLAP} epilogue stream"),
    "bf16": take(f"a b d masked_m expected_m compiled_dims {_OVERLAP} epilogue stream"),
}
_K_GROUPED = {
    "fp8": _by_position(
        take("a b d ks ks_tensor c recipe compiled_dims use_psum_layout epilogue stream", recipe=(1, 1, 128)), _PSUM
    ),
    "bf16": _by_position(take("a b d ks ks_tensor c compiled_dims use_psum_layout epilogue stream"), _PSUM),
}


def _list_dense() -> list[Op]:
    layouts = ("nt", "nn", "tn", "tt")
    gemms = [Op(f"{t}_gemm_{layout}", "dense", f"{t}_gemm", layout, _DENSE[t]) for t in _DENSE for layout in layouts]
    heads = Op(
        "fp8_gemm_nt_skip_head_mid", "heads", "fp8_gemm", "nt", take(f"a b d head_splits {_FP8_OPTIONS} epilogue")
    )
    return [*gemms, heads]


def _list_m_grouped() -> list[Op]:
    contiguous = [
        Op(
            f"m_grouped_{t}_gemm_{layout}_contiguous",
            "contiguous",
            f"m_grouped_{t}_gemm_contiguous",
            layout,
            _CONTIGUOUS[t],
        )
        for t in _CONTIGUOUS
        for layout in ("nt", "nn")
    ]
    masked = [
        Op(
            f"m_grouped_{t}_gemm_nt_masked",
            "masked",
            f"m_grouped_{t}_gemm_masked",
            "nt",
            _MASKED[t],
            other_names=(f"{t}_m_grouped_gemm_nt_masked",),
        )
        for t in _MASKED
    ]
    return contiguous + masked


def _list_k_grouped() -> list[Op]:
    return [
        Op(
            f"k_grouped_{t}_gemm_{layout}_contiguous",
            "k_grouped",
            f"k_grouped_{t}_gemm_contiguous",
            layout,
            _K_GROUPED[t],
        )
        for t, layout in (("fp8", "nt"), ("fp8", "tn"), ("bf16", "tn"))
    ]


def _list_logits() -> list[Op]:
    ranges = "cu_seq_len_k_start cu_seq_len_k_end clean_logits max_seqlen_k logits_dtype schedule_meta stream"
    pages = "context_lens block_table schedule_meta max_context_len clean_logits logits_dtype indices stream"
    return [
        Op(
            "fp8_mqa_logits",
            "logits",
            "fp8_mqa_logits",
            "nt",
            take(f"q kv weights {ranges}", schedule_meta=None),
            other_names=("fp8_fp4_mqa_logits",),
        ),
        Op(
            "fp8_paged_mqa_logits",
            "paged_logits",
            "fp8_paged_mqa_logits",
            "nt",
            take(f"q kv_cache weights {pages}", clean_logits=False),
            other_names=("fp8_fp4_paged_mqa_logits",),
        ),
        Op(
            "get_paged_mqa_logits_metadata",
            "metadata",
            "",
            "nt",
            take("context_lens block_kv num_sms indices"),
            module=logits,
        ),
    ]


def _list_batched() -> list[Op]:
    """Return the ops whose products an expression names; the rows' op kinds are those of most expressions."""
    return [
        Op("einsum", "einsum", "batched_bf16_gemm", "nt", take("expr a b d c use_cublaslt epilogue stream")),
        Op(
            "fp8_einsum",
            "fp8_einsum",
            "batched_fp8_gemm",
            "nt",
            take("expr a b d c recipe epilogue stream", recipe=(1, 128, 128)),
        ),
    ]


def _list_fp8_or_fp4(ops: list[Op]) -> list[Op]:
    """Return the ops under DeepGEMM's names for operands of FP8 or FP4. Here both are FP8."""
    return [
        replace(
            op,
            name=op.name.replace("fp8_gemm", "fp8_fp4_gemm"),
            parameters=_put_own_recipes_first(op.parameters),
            other_names=(),
            takes_fp4=True,
        )
        for op in ops
        if op.is_fp8 and "recipe_a" in [parameter.name for parameter in op.parameters]
    ]


def _put_own_recipes_first(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Return the order of those names, in which recipe_a and recipe_b come after recipe, and no parameter of DeepGEMM
    need be named.
    """
    own = [one for one in parameters if one.name in _OWN_RECIPES.split()]
    others = [one for one in parameters if one.name not in _OWN_RECIPES.split()]
    position = [one.name for one in others].index("recipe") + 1
    return _by_position((*others[:position], *own, *others[position:]), f"{_OWN_RECIPES} {_PSUM} alpha")


def _list_vendor() -> list[Op]:
    return [
        *(Op(f"cublaslt_gemm_{layout}", "vendor", "", layout, take("a b d c")) for layout in ("nt", "nn", "tn", "tt")),
        Op("batched_syrk", "syrk", "", "nt", take("a d")),
        Op("batched_symm", "symm", "", "nn", take("a b d")),
    ]


#: Every public op.
OPS = (
    *_list_dense(),
    *_list_m_grouped(),
    *_list_k_grouped(),
    *_list_batched(),
    Op("tf32_hc_prenorm_gemm", "hc_prenorm", "", "nt", take("a b d sqr_sum num_splits"), module=hc_prenorm),
    *_list_logits(),
    *_list_fp8_or_fp4([*_list_dense(), *_list_m_grouped()]),
    *_list_vendor(),
)


def _make_function(op: Op) -> Callable:
    """Return the function of a row: a builtin, which an eager call reaches without any Python, or one in Python."""
    if not op.kind:
        return getattr(op.module, op.name)
    return _C.make_op(
        name=op.name,
        kind=op.kind,
        layout=op.layout,
        is_blocks=op.is_blocks,
        parameters=[(parameter.name, parameter.alias) for parameter in op.parameters],
        num_required=op.num_required,
        num_positional=op.num_positional,
        documentation=f"{op.name}{op.signature}\n--\n\n{op_docs.make_docstring(op)}",
    )


#: Name of a row -> its function.
FUNCTIONS = {op.name: _make_function(op) for op in OPS}

#: What the package exports of the table: every name of every op.
EXPORTS = {name: FUNCTIONS[op.name] for op in OPS for name in (op.name, *op.other_names)}


#: Parameters that are no operands: how, not what.
_OPTIONS = frozenset(f"{_FP8_OPTIONS} {_OWN_RECIPES} {_PSUM.partition(' ')[2]} alpha beta use_cublaslt".split())
#: Parameters that the table shows by their shapes.
_SHOWN = frozenset(("a", "b", "d", "q", "kv", "kv_cache"))


def make_table() -> list[str]:
    """Return the table of ops as lines of Markdown: names, purpose, formula, shapes, further operands.

    Ops that differ in their layout alone share a row; its formula and shapes are those of the first.
    """
    rows: dict[tuple, list[Op]] = {}
    for op in OPS:
        rows.setdefault((op.docs_template, op.kind, op.is_blocks, op.takes_fp4), []).append(op)
    header = ["| op | what | computes | A, B and D | also takes |", "| --- | --- | --- | --- | --- |"]
    return header + [_make_row(ops) for ops in rows.values()]


def _make_row(ops: list[Op]) -> str:
    """Return the row of ops that differ in their layout alone."""
    op, layouts = ops[0], ",".join(one.layout for one in ops)
    name = op.name.replace(f"_{op.layout}", f"_{{{layouts}}}") if len(ops) > 1 else op.name
    others = [p.name for p in op.parameters if p.schema and p.name not in _SHOWN | _OPTIONS]
    texts = ((name, *op.other_names), (op_docs.formula(op),), op_docs.list_shapes(op), others)
    names, *cells = (", ".join(f"`{text}`" for text in cell) for cell in texts)
    return f"| {' | '.join([names, op_docs.get_purpose(op), *cells])} |"
