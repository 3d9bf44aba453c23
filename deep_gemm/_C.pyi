"""Native core of deep_gemm. Written by `make stubs`: do not edit."""

from collections.abc import Sequence
from typing import Any, final, overload

ANY_TILE_ALIGNMENT: int
FEATURES_VERSION: int
HEURISTIC_VERSION: str
LAUNCH_ABI: int
TILE_QUEUE_BYTES: int

@final
class Choice:
    def __init__(self, config: Config, source: str, reason: str) -> None: ...
    @property
    def config(self) -> Config: ...
    @property
    def source(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def scores(self) -> Any: ...

@final
class Config:
    def __init__(
        self,
        block_m: object,
        block_n: object,
        num_stages: object,
        *,
        block_k: object = 128,
        cluster_m: object = 1,
        cluster_n: object = 1,
        split_k: object = 1,
        swap_ab: object = 0,
    ) -> None: ...
    @property
    def block_m(self) -> int: ...
    @property
    def block_n(self) -> int: ...
    @property
    def block_k(self) -> int: ...
    @property
    def num_stages(self) -> int: ...
    @property
    def cluster_m(self) -> int: ...
    @property
    def cluster_n(self) -> int: ...
    @property
    def split_k(self) -> int: ...
    @property
    def swap_ab(self) -> int: ...
    def key(self, op: str) -> str: ...
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(text: str) -> Config: ...
    def as_dict(self) -> dict[str, Any]: ...

@final
class Device:
    def __init__(
        self,
        name: str,
        sm_count: object,
        *,
        sku: str | None = None,
        smem_bytes: object = 232448,
        l2_bytes: object,
        compute_capability: tuple[int, int] = (9, 0),
        clock_mhz: float,
        memory_gbps: float,
        mig: str = "",
    ) -> None: ...
    @staticmethod
    def known(sku_or_short_name: str) -> Device: ...
    @property
    def name(self) -> str: ...
    @property
    def sku(self) -> str: ...
    @property
    def mig(self) -> str: ...
    @property
    def sm_count(self) -> int: ...
    @property
    def smem_bytes(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def clock_mhz(self) -> float: ...
    @property
    def memory_gbps(self) -> float: ...
    @property
    def compute_capability(self) -> tuple[int, int]: ...
    def as_dict(self) -> dict[str, Any]: ...

@final
class Kernel:
    def __init__(self, cubin: bytes, name: str, problem: Problem, config: Config, device: object = 0) -> None: ...
    def launch(
        self,
        a: object,
        scale_a: object,
        b: object,
        scale_b: object,
        d: object,
        c: object = None,
        *,
        groups: object = None,
        num_sms: object = 0,
        alpha: object = 1.0,
        beta: object = 1.0,
        head_splits: object = None,
        stream: object = None,
    ) -> None: ...
    @property
    def problem(self) -> Problem: ...
    @property
    def config(self) -> Config: ...
    @property
    def num_regs(self) -> int: ...
    @property
    def local_bytes(self) -> int: ...
    @property
    def max_clusters(self) -> int: ...

@final
class Problem:
    def __init__(
        self,
        op: str,
        m: object,
        n: object,
        k: object,
        *,
        num_sms: object = 0,
        num_groups: object = 0,
        expected_m: object = 0,
        alignment: object = 128,
        compiled_dims: str = "",
        recipe: str = "1d2d",
        d_dtype: str = "bf16",
        c_mode: str = "none",
        a_major: str = "k",
        b_major: str = "k",
        scale_layout: str = "mn_major",
        group_layout: str = "joint",
        batch_invariant: object = False,
    ) -> None: ...
    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def num_sms(self) -> int: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def expected_m(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def recipe(self) -> str: ...
    @property
    def d_dtype(self) -> str: ...
    @property
    def c_mode(self) -> str: ...
    @property
    def a_major(self) -> str: ...
    @property
    def b_major(self) -> str: ...
    @property
    def scale_layout(self) -> str: ...
    @property
    def group_layout(self) -> str: ...
    @property
    def batch_invariant(self) -> bool: ...
    @property
    def op(self) -> str: ...
    @property
    def compiled_dims(self) -> str: ...
    @property
    def key(self) -> str: ...
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(text: str) -> Problem: ...
    def as_dict(self) -> dict[str, Any]: ...

@final
class Selector:
    @staticmethod
    def load(content: bytes) -> Selector: ...
    @property
    def sku(self) -> str: ...
    @property
    def metadata(self) -> Any: ...
    def portfolio(self, op: str) -> list[Config]: ...
    def configs(self, op: str) -> list[Config]: ...
    def quarantined(self, op: str) -> list[Config]: ...
    def choose(self, problem: Problem, device: Device, mode: str = "auto", kernel_hash: str = "") -> Choice: ...
    def scores(self, problem: Problem, device: Device) -> list[float]: ...
    def decide(self, op: str, features: Sequence[float]) -> tuple[int, str, list[float]]: ...
    def replay_golden(self) -> int: ...

@final
class TensorView:
    def __init__(
        self,
        address: int,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: str,
        device: int = 0,
    ) -> None: ...

def bf16_gemm_nn(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    compiled_dims: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def bf16_gemm_nt(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    compiled_dims: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def bf16_gemm_tn(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    compiled_dims: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def bf16_gemm_tt(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    compiled_dims: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def blocks_per_sm(problem: Problem, config: Config) -> int: ...
def dispatch_clear() -> None: ...
def dispatch_stats() -> dict[str, Any]: ...
def estimate_registers(problem: Problem, config: Config) -> int: ...
def estimate_time_us(
    problem: Problem,
    config: Config,
    device: Device,
    constants: dict[str, Any] | None = None,
) -> float: ...
def feature_names(op: str, portfolio: Sequence[Config]) -> list[str]: ...
def fp8_gemm_nn(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def fp8_gemm_nt(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def fp8_gemm_nt_skip_head_mid(
    a: Any,
    b: Any,
    d: Any,
    head_splits: Any,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
) -> None: ...
def fp8_gemm_tn(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def fp8_gemm_tt(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    stream: Any = None,
) -> None: ...
def get_analytic_config(problem: Problem, device: Device) -> Config: ...
def get_candidates(problem: Problem, device: Device) -> list[Config]: ...
@overload
def get_default_space(problem: Problem, device: Device) -> list[Config]: ...
@overload
def get_default_space(device: Device) -> list[Config]: ...
def get_device(ordinal: object = None) -> Device: ...
def get_device_uuid(ordinal: object = None) -> str: ...
def get_driver_version() -> int: ...
def get_features(problem: Problem, device: Device, portfolio: Sequence[Config]) -> list[float]: ...
def get_k_alignment_for_contiguous_layout() -> int: ...
def get_m_alignment_for_contiguous_layout() -> int: ...
def get_mk_alignment_for_contiguous_layout() -> int: ...
def get_num_sms() -> int: ...
def get_pdl() -> bool: ...
def get_tc_util() -> float: ...
def grouped_launch_geometry(
    problem: Problem,
    config: Config,
    *,
    sm_count: int,
    max_clusters: int = 0,
) -> dict[str, Any]: ...
def heuristic_constants() -> dict[str, Any]: ...
def is_batch_invariant() -> bool: ...
def is_legal(problem: Problem, config: Config, device: Device) -> bool: ...
def is_pipelined(problem: Problem, config: Config) -> bool: ...
def is_staged(problem: Problem, config: Config) -> bool: ...
def is_worth_trying(problem: Problem, config: Config, device: Device) -> bool: ...
def k_grouped_bf16_gemm_tn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    ks: Any,
    ks_tensor: Any = None,
    c: Any = None,
    compiled_dims: Any = None,
    *,
    stream: Any = None,
) -> None: ...
def k_grouped_fp8_gemm_nt_contiguous(
    a: Any,
    b: Any,
    d: Any,
    ks: Any,
    ks_tensor: Any = None,
    c: Any = None,
    recipe: Any = (1, 1, 128),
    compiled_dims: Any = None,
    *,
    stream: Any = None,
) -> None: ...
def k_grouped_fp8_gemm_tn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    ks: Any,
    ks_tensor: Any = None,
    c: Any = None,
    recipe: Any = (1, 1, 128),
    compiled_dims: Any = None,
    *,
    stream: Any = None,
) -> None: ...
def kernel_identity(problem: Problem) -> Problem: ...
def launch_geometry(
    config: Config,
    m: int,
    n: int,
    *,
    num_sms: int = 0,
    sm_count: int,
    max_clusters: int = 0,
) -> dict[str, Any]: ...
def legality_reason(problem: Problem, config: Config, device: Device) -> str: ...
def m_grouped_bf16_gemm_nn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    m_indices: Any,
    compiled_dims: Any = None,
    *,
    stream: Any = None,
) -> None: ...
def m_grouped_bf16_gemm_nt_contiguous(
    a: Any,
    b: Any,
    d: Any,
    m_indices: Any,
    compiled_dims: Any = None,
    *,
    stream: Any = None,
) -> None: ...
def m_grouped_bf16_gemm_nt_masked(
    a: Any,
    b: Any,
    d: Any,
    masked_m: Any,
    expected_m: Any,
    compiled_dims: Any = None,
    *,
    stream: Any = None,
) -> None: ...
def m_grouped_fp8_gemm_nn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    m_indices: Any,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
    *,
    stream: Any = None,
) -> None: ...
def m_grouped_fp8_gemm_nt_contiguous(
    a: Any,
    b: Any,
    d: Any,
    m_indices: Any,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
    *,
    stream: Any = None,
) -> None: ...
def m_grouped_fp8_gemm_nt_masked(
    a: Any,
    b: Any,
    d: Any,
    masked_m: Any,
    expected_m: Any,
    recipe: Any = None,
    compiled_dims: Any = None,
    disable_ue8m0_cast: Any = False,
    *,
    stream: Any = None,
) -> None: ...
def num_threads(config: Config) -> int: ...
def set_batch_invariant(is_enabled: object) -> None: ...
def set_mk_alignment_for_contiguous_layout(alignment: object) -> None: ...
def set_num_sms(num_sms: object) -> None: ...
def set_pdl(is_enabled: object) -> None: ...
def set_tc_util(ratio: object) -> None: ...
def smem_bytes(problem: Problem, config: Config) -> int: ...
def time_dispatch_hits(problems: Sequence[Problem], rounds: int) -> float: ...
