"""Tensor maps, launch geometry and kernel arguments of every variant, as the (stub) driver receives them."""

import itertools

import pytest

from deep_gemm import _C
from deep_gemm.errors import ShapeError
from tests.fakes import stub_operands
from tests.fakes.bands import Walk
from tests.fakes.stub_driver import load_kernel, read_params, select
from tests.fakes.stub_operands import ELEMENT, pitch_of

TYPES = {"float8_e4m3fn": 0, "float32": 7, "bfloat16": 9}
NO_MAP = 0
SHAPES = [(1, 8, 16), (3, 16, 16), (64, 128, 128), (65, 136, 144), (300, 504, 1000), (8192, 7168, 2048)]
HEADS = (8, 4, 0)


def variants() -> list[dict]:
    """Return the fields of every variant that has kernels."""
    outputs = [{"d_dtype": dtype, "c_mode": mode} for dtype in ("bf16", "fp32") for mode in ("none", "general")] + [
        {"d_dtype": "fp32", "c_mode": "accumulate"}
    ]
    scales = [
        {"recipe": recipe, "scale_layout": layout} for recipe in ("1d2d", "1d1d") for layout in ("mn_major", "any")
    ] + [{"recipe": "per_row"}]
    fp8 = [{"op": "fp8_gemm", **output, **scale} for output in outputs for scale in scales]
    fp8 += [{"op": "fp8_gemm", "c_mode": "head_split", **scale} for scale in scales[:2]]
    majors = [{"a_major": a, "b_major": b} for a, b in itertools.product(("k", "mn"), repeat=2)]
    return fp8 + [{"op": "bf16_gemm", **output, **major} for output in outputs for major in majors]


def make_problem(fields: dict, m=1, n=1, k=1) -> "_C.Problem":
    rest = {name: value for name, value in fields.items() if name != "op"}
    return _C.Problem(fields["op"], m, n, k, **rest)


def describe(fields: dict) -> str:
    return "-".join(fields.values())


def choose_configs(problem, device) -> list:
    """Return some configs of the space, of every kind, and swapped and split ones where they are legal."""
    space = _C.get_default_space(problem, device)
    block_k = 128 if problem.op == "fp8_gemm" else 64
    more = [
        _C.Config(block_m, block_n, stages, block_k=block_k, split_k=split, swap_ab=1)
        for block_m in (8, 64, 128) for block_n in (64, 128) for stages in (3,) for split in (1, 2, 8)
    ]  # fmt: skip
    more += [
        _C.Config(block_m, 64, 3, block_k=block_k, **cluster)
        for block_m in (64, 128)
        for cluster in ({"cluster_m": 2}, {"cluster_n": 2})
    ]
    return [config for config in dict.fromkeys(space[::5] + more) if _C.is_legal(problem, config, device)]


def launch_variants(shape, all_fields):
    """Launch configs of some variants on `shape`; return (fields, config fields, threads, bytes, is staged) of each
    launch.
    """
    launched, device = [], _C.get_device()
    for fields in all_fields:
        problem = make_problem(fields)
        positional, options = stub_operands.make_variant(problem, *shape, heads=HEADS)
        for config in choose_configs(problem, device):
            load_kernel(config, problem=problem).launch(*positional, **options, stream=7)
            launched.append(
                (
                    fields,
                    config.as_dict(),
                    _C.num_threads(problem, config),
                    _C.smem_bytes(problem, config),
                    _C.is_staged(problem, config),
                )
            )
    return launched


def input_map(config, shape, name, dtype, major):
    """Return (type, dims, pitch in bytes, box, swizzle) of the map of A, of its last rows ("tail") or of B by the
    contract of the kernels.
    """
    rows, k, size = shape[1 if name == "b" else 0], shape[2], ELEMENT[dtype]
    if major == "mn":
        return (
            TYPES[dtype],
            [rows, k],
            pitch_of(rows, dtype) * size if k > 1 else -(-rows * size // 16) * 16,
            [64, 64],
            3,
        )
    box_rows = {
        "a": config["block_m"] // config["cluster_n"],
        "b": config["block_n"] // config["cluster_m"],
        "tail": rows % config["block_m"],
    }[name]
    pitch = pitch_of(k, dtype) * size if rows > 1 else -(-k * size // 16) * 16
    return TYPES[dtype], [k, rows], pitch, [128 // size, box_rows], 3


def d_map(config, shape, dtype):
    """Return the same of D, which ends at its last whole 16 bytes."""
    (m, n, _), size = shape, ELEMENT[dtype]
    columns, swizzle = stub_operands.find_slab(_C.Config(**config), dtype)
    pitch = pitch_of(n, dtype) * size if m > 1 else -(-n * size // 16) * 16
    unit = 16 // size
    return (
        TYPES[dtype],
        [max(n // unit * unit, unit), m],
        pitch,
        [columns, config["block_m"] if config["swap_ab"] else 64],
        swizzle,
    )


def scale_map(rows, steps, box_rows):
    """Return the same of a tensor of scale vectors."""
    aligned = -(-rows // 4) * 4
    return TYPES["float32"], [rows, steps], 4 * (aligned + 4 if steps > 1 else aligned), [box_rows, 1], 0


def expected_maps(fields, config, shape, is_staged):
    """Return what the kernel's six maps must be, None for one that is not encoded."""
    (m, n, k), is_fp8 = shape, fields["op"] == "fp8_gemm"
    dtype = "float8_e4m3fn" if is_fp8 else "bfloat16"
    maps = [input_map(config, shape, name, dtype, fields.get(f"{name}_major", "k")) for name in "ab"]
    has_tail = config["cluster_n"] == 1 and fields.get("a_major", "k") == "k" and m % config["block_m"] > 0
    if has_tail and m < config["block_m"]:
        maps[0] = None
    maps.append(
        d_map(config, shape, "float32" if fields.get("d_dtype") == "fp32" else "bfloat16") if is_staged else None
    )
    has_vectors = is_fp8 and fields["recipe"] != "per_row" and fields["scale_layout"] == "mn_major"
    steps = -(-k // 128)
    maps.append(scale_map(m, steps, config["block_m"]) if has_vectors else None)
    maps.append(scale_map(n, steps, config["block_n"]) if has_vectors and fields["recipe"] == "1d1d" else None)
    return [*maps, input_map(config, shape, "tail", dtype, "k") if has_tail else None]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_launches_of_every_variant(driver, shape):
    launched, events = driver.call(launch_variants, shape, variants())
    maps, launches = (
        {event["map"]: event for event in select(events, "TensorMapEncodeTiled")},
        select(events, "LaunchKernelEx"),
    )
    assert len(launches) == len(launched) > 400
    assert all(event["valid"] and event["interleave"] == event["fill"] == 0 for event in maps.values())
    for (fields, config, threads, smem_bytes, is_staged), launch in zip(launched, launches, strict=True):
        got = [maps[number] if number != NO_MAP else None for number in launch["maps"]]
        described = [
            event and (event["type"], event["dims"], event["pitch"], event["box"], event["swizzle"]) for event in got
        ]
        assert described == expected_maps(fields, config, shape, is_staged), (fields, config)
        assert launch["block"] == [threads, 1, 1] and launch["smem"] == smem_bytes
        check_grid(config, shape, launch)
        check_params(read_params(launch), fields, shape, config)


def test_where_the_maps_lie(driver):
    fields = {"op": "fp8_gemm", "recipe": "1d1d", "scale_layout": "mn_major", "d_dtype": "fp32", "c_mode": "accumulate"}
    launched, events = driver.call(launch_variants, (64, 128, 256), [fields])
    maps = {event["map"]: event for event in select(events, "TensorMapEncodeTiled")}
    addresses = [stub_operands.A, stub_operands.B, stub_operands.D, stub_operands.SCALE_A, stub_operands.SCALE_B]
    expected = list(zip(addresses, [3, 3, 3, 2, 2]))
    for (_, config, *_, is_staged), launch in zip(launched, select(events, "LaunchKernelEx"), strict=True):
        *whole, tail = launch["maps"]
        has_tail = config["cluster_n"] == 1 and 64 % config["block_m"] > 0
        numbers = [tail if has_tail else whole[0], *whole[1:]]
        got = [(maps[number]["address"], maps[number]["promotion"]) for number in numbers if number != NO_MAP]
        assert got == (expected if is_staged else expected[:2] + expected[3:])
        assert (tail != NO_MAP) == has_tail and (whole[0] == NO_MAP) == (has_tail and config["block_m"] > 64)


def check_grid(config, shape, launch):
    cluster = config["cluster_m"] * config["cluster_n"] * config["split_k"]
    tiles = -(-shape[0] // config["block_m"]) * -(-shape[1] // config["block_n"])
    assert launch["cluster"] == (cluster if cluster > 1 else 0)
    assert launch["stream"] == 7 and not launch["extra"] and launch["device"] == 0
    assert launch["grid"][0] % cluster == 0 and launch["grid"][1:] == [1, 1]
    assert launch["grid"][0] == tiles * cluster if config["split_k"] > 1 else 0 < launch["grid"][0] <= 132


def check_params(params, fields, shape, config):
    m, n, k = shape
    assert (params["m"], params["n"], params["k"]) == shape
    assert (params["num_m_tiles"], params["num_n_tiles"]) == (-(-m // config["block_m"]), -(-n // config["block_n"]))
    assert params["d"] == stub_operands.D and params["zero"] == 0
    d_columns = n // (HEADS[0] + HEADS[2]) * sum(HEADS) if fields["c_mode"] == "head_split" else n
    assert params["d_stride_m"] == pitch_of(d_columns, "float32" if fields.get("d_dtype") == "fp32" else "bfloat16")
    assert (params["head_left"], params["head_mid"], params["head_right"]) == (
        HEADS if fields["c_mode"] == "head_split" else (0, 0, 0)
    )
    c = {"general": (stub_operands.C, n + 1), "accumulate": (stub_operands.D, params["d_stride_m"])}.get(
        fields["c_mode"], (0, 0)
    )
    assert (params["c"], params["c_stride_m"]) == c
    assert (params["alpha"], params["beta"]) == ((0.5, -2.0) if fields["c_mode"] == "general" else (1.0, 1.0))
    check_scales(params, fields, -(-k // 128), m, n)


def check_scales(params, fields, steps, m, n):
    names = ("scale_a", "scale_b", "scale_a_stride_mn", "scale_a_stride_k", "scale_b_stride_mn", "scale_b_stride_k")
    if fields["op"] == "bf16_gemm":
        expected = (0,) * 6
    elif fields["recipe"] == "per_row":
        expected = (stub_operands.SCALE_A, stub_operands.SCALE_B, 2, 0, 3, 0)
    else:
        strides = [
            (1, -(-rows // 4) * 4 + 4) if fields["scale_layout"] == "mn_major" else (steps + 3, 1) for rows in (m, n)
        ]
        strides[1] = strides[1] if fields["recipe"] == "1d1d" else (steps + 3, 1)
        expected = (stub_operands.SCALE_A, stub_operands.SCALE_B, *strides[0], *strides[1])
    assert tuple(params[name] for name in names) == expected


def launch_wide():
    """Launch on operands whose sizes are the largest and whose strides, in elements and bytes, pass 2^31."""
    m, n, k = (1 << 31) - 1, 128, (1 << 31) - 1
    steps = -(-k // 128)
    a, b = (
        stub_operands.view(1 << 63, (m, k), (1 << 32, 1), "float8_e4m3fn"),
        stub_operands.view(1 << 58, (n, k), (1 << 38, 1), "float8_e4m3fn"),
    )
    scale_a = stub_operands.view(1 << 61, (m, steps), (1, 1 << 33), "float32")
    scale_b = stub_operands.view(1 << 62, (1, steps), (1 << 40, 1 << 34), "float32")
    kernel = load_kernel(_C.Config(128, 128, 4), problem=_C.Problem("fp8_gemm", 1, 1, 1))
    kernel.launch(a, scale_a, b, scale_b, stub_operands.view(16, (m, n), (1 << 24, 1), "bfloat16"))


def test_sizes_beyond_32_bits_do_not_wrap(driver):
    _, events = driver.call(launch_wide)
    encoded = {event["map"]: event for event in select(events, "TensorMapEncodeTiled")}
    (launch,) = select(events, "LaunchKernelEx")
    maps, params = [encoded.get(number) for number in launch["maps"]], read_params(launch)
    assert maps[0]["dims"] == maps[5]["dims"] == [(1 << 31) - 1] * 2 and maps[0]["pitch"] == 1 << 32
    assert maps[1]["pitch"] == 1 << 38 and maps[2]["pitch"] == 1 << 25 and maps[3]["pitch"] == 1 << 35
    assert params["scale_a_stride_k"] == 1 << 33 and params["scale_b_stride_k"] == 1 << 34
    assert params["num_m_tiles"] == 1 << 24


def brute_force_band(config, m_cluster_tiles, n_cluster_tiles, clusters, memory_gbps=0.0):
    """Return the band of a dense product (K 512, BF16 D)."""
    walk = Walk(config, m_cluster_tiles, n_cluster_tiles, clusters, k_bytes=512, memory_gbps=memory_gbps)
    return walk.choose(m_cluster_tiles * n_cluster_tiles)


def dense(m: int, n: int, **fields) -> "_C.Problem":
    """Return a dense problem of these sizes."""
    return _C.Problem("fp8_gemm", m, n, 512, **fields)


PRODUCTS = [
    (1, 1, 0, 0),
    (5000, 4000, 0, 0),
    (5000, 4000, 1, 0),
    (300, 4000, 77, 0),
    (9000, 9000, 0, 60),
    (64, 300, 500, 0),
    (2048, 576, 0, 0),
    (1536, 1056, 0, 0),
    (1000, 2112, 0, 0),
]


@pytest.mark.parametrize("memory_gbps", [0.0, 3350.0, 4800.0])
@pytest.mark.parametrize(
    "config",
    [
        _C.Config(64, 8, 8),
        _C.Config(64, 72, 8),
        _C.Config(128, 96, 4),
        _C.Config(256, 64, 4),
        _C.Config(128, 112, 4, cluster_m=2),
        _C.Config(256, 128, 3, cluster_n=2),
    ],
    ids=str,
)
def test_geometry(config, memory_gbps):
    size, rate = config.cluster_m * config.cluster_n, {"memory_gbps": memory_gbps}
    for m, n, num_sms, limit in PRODUCTS:
        got = _C.launch_geometry(dense(m, n, num_sms=num_sms), config, sm_count=132, max_clusters=limit, **rate)
        m_tiles, n_tiles = -(-m // config.block_m), -(-n // config.block_n)
        m_clusters, n_clusters = -(-m_tiles // config.cluster_m), -(-n_tiles // config.cluster_n)
        clusters = min(max(min(num_sms or 132, 132) // size, 1), limit or 132, m_clusters * n_clusters)
        assert got["num_ctas"] == clusters * size
        assert (got["num_m_tiles"], got["num_n_tiles"]) == (m_tiles, n_tiles)
        assert got["band"] == brute_force_band(config, m_clusters, n_clusters, clusters, memory_gbps)


@pytest.mark.parametrize(
    "m, n, tile, bands",
    [
        (1536, 1024, (128, 96), {2, 3, 4, 6}),
        (2048, 576, (128, 72), {1, 2, 3}),
        (1024, 576, (64, 72), {4}),
        (1024, 1024, (64, 128), {4}),
        (512, 576, (64, 40), {2, 3, 4, 6}),
        (256, 2112, (64, 64), {4}),
    ],
)
def test_ctas_that_start_together_share_rows(m, n, tile, bands):
    """Bands that an H100 measured as the best of one wave (docs/kernels.md), the best within 8 %."""
    assert _C.launch_geometry(dense(m, n), _C.Config(*tile, 4), sm_count=132)["band"] in bands


@pytest.mark.parametrize(
    "op, m, n, k, tile, bands",
    [
        ("fp8_gemm", 8192, 2112, 7168, (128, 128, 1), {2, 4}),
        ("fp8_gemm", 8192, 7168, 16384, (128, 128, 1), {2, 3, 4, 6}),
        ("fp8_gemm", 2048, 32768, 512, (256, 128, 1), {4, 8}),
        ("fp8_gemm", 2048, 32768, 512, (128, 192, 2), {16}),
        ("fp8_gemm", 4096, 32768, 512, (128, 192, 2), {32}),
        ("bf16_gemm", 4096, 7168, 16384, (128, 128, 1), {3, 4, 6}),
        ("bf16_gemm", 4096, 24576, 1536, (128, 128, 1), {4}),
        ("bf16_gemm", 4096, 2112, 7168, (128, 128, 1), {2, 3, 4}),
    ],
)
def test_grids_of_many_waves_move_few_bytes(op, m, n, k, tile, bands):
    """Bands with which an H100 took at most 4 % longer than with the best, and up to 23 with those of waves."""
    block_m, block_n, cluster_n = tile
    config = _C.Config(block_m, block_n, 3, block_k=128 if op == "fp8_gemm" else 64, cluster_n=cluster_n)
    assert _C.launch_geometry(_C.Problem(op, m, n, k), config, sm_count=132)["band"] in bands


@pytest.mark.parametrize(
    "op, m, n, k, tile, bands",
    [
        ("fp8_gemm", 4096, 24576, 1536, (128, 128), {16, 32}),
        ("fp8_gemm", 2048, 32768, 512, (128, 192), {2, 8, 16}),
        ("fp8_gemm", 2048, 7168, 16384, (128, 128), {8}),
        ("fp8_gemm", 8192, 2112, 7168, (128, 192), {2, 4, 8}),
        ("bf16_gemm", 4096, 24576, 1536, (128, 192), {16, 32}),
    ],
)
def test_dense_grids_of_many_waves_on_an_h200(op, m, n, k, tile, bands):
    """Bands with which an H200 took at most 1.5 % longer than with the best."""
    config, rate = _C.Config(*tile, 4, block_k=128 if op == "fp8_gemm" else 64), _C.Device.known("h200").memory_gbps
    assert _C.launch_geometry(_C.Problem(op, m, n, k), config, sm_count=132, memory_gbps=rate)["band"] in bands


def test_clusters_larger_than_any_kernel_has_still_have_a_band():
    """Seen as an endless loop, of which only a geometry that is asked for from Python could come."""
    config = _C.Config(64, 64, 4, cluster_m=5, cluster_n=4)
    assert 1 <= _C.launch_geometry(dense(1 << 14, 1 << 14), config, sm_count=132)["band"] <= 52


def test_no_band_cuts_more_tiles_than_there_are():
    for m in (512, 640, 8192, 1 << 20):
        got = _C.launch_geometry(dense(m, 1 << 16), _C.Config(128, 128, 4), sm_count=132)
        assert 1 <= got["band"] <= min(64, m // 128)


@pytest.mark.parametrize("split", [2, 4, 8])
def test_split_geometry_has_a_cluster_for_every_tile(split):
    config = _C.Config(16, 64, 4, split_k=split, swap_ab=1)
    for m, n, _, _ in PRODUCTS:
        m_tiles, n_tiles = -(-m // 16), -(-n // 64)
        got = _C.launch_geometry(dense(m, n), config, sm_count=132, max_clusters=3)
        assert (got["num_ctas"], got["num_m_tiles"], got["num_n_tiles"]) == (
            m_tiles * n_tiles * split,
            m_tiles,
            n_tiles,
        )
        assert got["band"] == brute_force_band(config, m_tiles, n_tiles, min(132 // split, m_tiles * n_tiles))


@pytest.mark.parametrize("config", [_C.Config(64, 8, 8), _C.Config(64, 64, 8, split_k=8, swap_ab=1)], ids=str)
def test_more_tiles_than_the_kernel_counts(config):
    with pytest.raises(ShapeError, match="2\\^31 tiles"):
        _C.launch_geometry(dense((1 << 31) - 1, (1 << 31) - 1), config, sm_count=132)
    with pytest.raises(ShapeError, match="2\\^31 tiles"):
        _C.launch_geometry(dense(1 << 18, 1 << 22), config, sm_count=132)
