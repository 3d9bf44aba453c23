"""The parameters of the public ops: each is described once, and a row of deep_gemm.ops takes those that it has.

A parameter's name says what it is, here and in the native code (csrc/runtime/op.cpp).
"""

from dataclasses import dataclass, replace

#: The default of a parameter that must be given.
REQUIRED = object()


@dataclass(frozen=True)
class Parameter:
    """A parameter of an op.

    Attributes: `schema`: how a graph holds it, in the syntax of torch.library; empty where no graph can. `check`: what
        the argument must be for a graph to hold it (a function of stand_ins); empty where anything is accepted.
        `alias`: its second name as a keyword, which other versions of the API use.
    """

    name: str
    schema: str
    default: object = REQUIRED
    check: str = ""
    alias: str | None = None
    is_keyword_only: bool = False

    @property
    def text(self) -> str:
        """The parameter as a signature writes it."""
        return self.name if self.default is REQUIRED else f"{self.name}={self.default!r}"


#: Name -> the parameter.
PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        Parameter("expr", "str expr", check="text"),
        Parameter("a", "Tensor a", check="operand"),
        Parameter("b", "Tensor b", check="operand"),
        Parameter("d", "Tensor(d!) d", check="tensor"),
        Parameter("c", "Tensor? c=None", None, check="tensor"),
        Parameter("head_splits", "int[] head_splits", check="integers"),
        Parameter("m_indices", "Tensor m_indices", check="tensor", alias="grouped_layout"),
        Parameter("masked_m", "Tensor masked_m", check="tensor"),
        Parameter("expected_m", "SymInt expected_m", check="integer", alias="expected_m_per_group"),
        Parameter("ks", "SymInt[] ks", check="sizes", alias="ks_cpu"),
        Parameter("ks_tensor", "Tensor? ks_tensor=None", None, check="tensor", alias="grouped_layout"),
        Parameter("sqr_sum", "Tensor(s!) sqr_sum", check="tensor"),
        Parameter("num_splits", "SymInt? num_splits=None", None, check="optional_integer"),
        Parameter("use_cublaslt", "bool use_cublaslt=False", False, check="flag"),
        Parameter("recipe", "int[]? recipe=None", None, check="optional_integers"),
        Parameter("recipe_a", "int[]? recipe_a=None", None, check="optional_integers", is_keyword_only=True),
        Parameter("recipe_b", "int[]? recipe_b=None", None, check="optional_integers", is_keyword_only=True),
        Parameter("compiled_dims", "str? compiled_dims=None", None, check="optional_text"),
        Parameter("disable_ue8m0_cast", "bool disable_ue8m0_cast=False", False, check="flag"),
        Parameter("alpha", "float alpha=1.0", 1.0, check="optional_number", is_keyword_only=True),
        Parameter("beta", "float beta=1.0", 1.0, check="number", is_keyword_only=True),
        Parameter("epilogue", "", None, check="unused", is_keyword_only=True),
        Parameter("enable_overlap", "", None, check="unused", is_keyword_only=True),
        Parameter("max_block_n", "", None, check="unused_limit", is_keyword_only=True),
        Parameter("signal", "", None, check="unused", is_keyword_only=True),
        Parameter("use_psum_layout", "bool use_psum_layout=False", False, check="flag", is_keyword_only=True),
        Parameter("ensure_zero_padding", "bool ensure_zero_padding=False", False, check="flag", is_keyword_only=True),
        Parameter(
            "expected_m_for_psum_layout",
            "SymInt? expected_m_for_psum_layout=None",
            None,
            check="optional_integer",
            is_keyword_only=True,
        ),
        Parameter("q", "Tensor q", check="queries"),
        Parameter("kv", "Tensor kv", check="operand"),
        Parameter("kv_cache", "Tensor kv_cache", check="tensor"),
        Parameter("weights", "Tensor weights", check="tensor"),
        Parameter("cu_seq_len_k_start", "Tensor cu_seq_len_k_start", check="tensor"),
        Parameter("cu_seq_len_k_end", "Tensor cu_seq_len_k_end", check="tensor"),
        Parameter("context_lens", "Tensor context_lens", check="tensor"),
        Parameter("block_table", "Tensor block_table", check="tensor"),
        Parameter("schedule_meta", "Tensor schedule_meta", check="tensor"),
        Parameter("block_kv", "SymInt block_kv", check="integer"),
        Parameter("num_sms", "SymInt num_sms", check="integer"),
        Parameter("max_context_len", "SymInt max_context_len", check="integer"),
        Parameter("clean_logits", "bool clean_logits=True", True, check="cleaning"),
        Parameter("max_seqlen_k", "SymInt max_seqlen_k=0", 0, check="length"),
        Parameter("logits_dtype", "ScalarType? logits_dtype=None", None, check="dtype"),
        Parameter("indices", "Tensor? indices=None", None, check="tensor"),
        Parameter("stream", "", None, check="absent", is_keyword_only=True),
    )
}


def take(names: str, **defaults: object) -> tuple[Parameter, ...]:
    """Return the named parameters, with defaults of their own where they have such. One whose default becomes None is
    here to be None, and no graph holds it.
    """
    return tuple(
        _with_default(PARAMETERS[name], defaults[name]) if name in defaults else PARAMETERS[name]
        for name in names.split()
    )


def _with_default(parameter: Parameter, default: object) -> Parameter:
    if default is None:
        return replace(parameter, default=None, schema="", check="absent")
    schema = f"bool {parameter.name}={default}" if isinstance(default, bool) else parameter.schema
    return replace(parameter, default=default, schema=schema)
