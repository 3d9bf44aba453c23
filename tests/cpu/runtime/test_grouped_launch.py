"""Tensor maps, grids and arguments of the grouped kernels' launches, as the (stub) driver receives them."""

import pytest

from deep_gemm import _C, stream
from deep_gemm.errors import ShapeError
from tests.fakes import stub_operands
from tests.fakes.bands import Walk
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, MASKED, make_grouped, make_grouped_variants
from tests.fakes.stub_driver import load_kernel, read_group_params, read_params, select
from tests.fakes.stub_operands import ELEMENT, make_grouped_variant, pitch_of

TYPES = {"float8_e4m3fn": 0, "float32": 7, "bfloat16": 9}
NO_MAP = 0
FP8, BF16 = "m_grouped_fp8_gemm_contiguous", "m_grouped_bf16_gemm_masked"
#: m, n, k (of all groups together where they divide it) and groups.
SHAPES = [(1, 8, 128, 1), (3, 16, 256, 2), (128, 256, 512, 4), (300, 504, 1024, 5)]


def choose_configs(problem, device) -> list:
    """Return some legal configs of every kind: plain, in clusters, with several blocks on an SM, and swapped."""
    block_k = 128 if "fp8" in problem.op else 64
    plain = [_C.Config(block_m, block_n, 3, block_k=block_k) for block_m in (64, 128) for block_n in (8, 48, 64, 128)]
    clusters = [
        _C.Config(block_m, 64, 4, block_k=block_k, **cluster)
        for block_m in (64, 128)
        for cluster in ({"cluster_m": 2}, {"cluster_n": 2})
    ]
    swapped = [
        _C.Config(block_m, block_n, 2, block_k=block_k, swap_ab=1) for block_m in (8, 32, 64) for block_n in (64, 128)
    ]
    return [config for config in plain + clusters + swapped if _C.is_legal(problem, config, device)]


# Every variant on explicit kernels.


def launch_variants(shape, problems):
    """Launch some configs of every variant; return (problem, config) of each launch."""
    launched, device = [], _C.get_device()
    for problem in problems:
        positional, options = make_grouped_variant(problem, *shape)
        for config in choose_configs(problem, device):
            load_kernel(config, problem=problem).launch(*positional, **options, stream=7)
            launched.append((problem, config))
    return launched


def joint_map(address, dims, dtype, box, swizzle, strides=(16, 16)):
    """Return a map as `describe` does; `strides` are bytes."""
    return {
        "address": address,
        "type": TYPES[dtype],
        "dims": list(dims[:2]),
        "groups": dims[2],
        "box": list(box),
        "swizzle": swizzle,
        "strides": strides,
    }


def describe(event):
    """Return what of an encoded map the kernels depend on, the stride of a single row or group left out."""
    strides = (event["pitch"] if event["dims"][1] > 1 else 0, event["group_pitch"] if event["groups"] > 1 else 0)
    return {name: event[name] for name in ("address", "type", "dims", "groups", "box", "swizzle")} | {
        "strides": strides
    }


def strides_of(rows, columns, groups, dtype):
    """Return the pitches in bytes that stub_operands.grouped_view gives, 0 of a single row or group."""
    pitch = pitch_of(columns, dtype) * ELEMENT[dtype]
    return pitch if rows > 1 else 0, (rows + 2) * pitch if groups > 1 else 0


def input_map(problem, config, name, rows, k, groups):
    """Return the map of A, of its last rows ("tail") or of B by the contract of the kernels."""
    dtype = "float8_e4m3fn" if "fp8" in problem.op else "bfloat16"
    address = stub_operands.B if name == "b" else stub_operands.A
    if (problem.b_major if name == "b" else problem.a_major) == "mn":
        return joint_map(address, (rows, k, groups), dtype, (64, 64), 3, strides_of(k, rows, groups, dtype))
    box_rows = {
        "a": config.block_m // config.cluster_n,
        "b": config.block_n // config.cluster_m,
        "tail": rows % config.block_m,
    }[name]
    strides = (k if rows > 1 else 0, 0) if problem.group_layout == "blocks" else strides_of(rows, k, groups, dtype)
    return joint_map(address, (k, rows, groups), dtype, (128 // ELEMENT[dtype], box_rows), 3, strides)


def d_map(problem, config, m, n, groups):
    """Return the map of D, which ends at its last whole 16 bytes."""
    dtype = "float32" if problem.d_dtype == "fp32" else "bfloat16"
    size = ELEMENT[dtype]
    columns, swizzle = stub_operands.find_slab(config, dtype)
    dims = (max(n * size // 16 * 16, 16) // size, m, groups)
    box = (columns, config.block_m if config.swap_ab else 64)
    return joint_map(stub_operands.D, dims, dtype, box, swizzle, strides_of(m, n, groups, dtype))


def scale_map(address, rows, steps, groups, box_rows):
    """Return the map of a tensor of scale vectors."""
    pitch = 4 * (-(-rows // 4) * 4 + 4)
    strides = (pitch if steps > 1 else 0, pitch * (steps + 1) if groups > 1 else 0)
    return joint_map(address, (rows, steps, groups), "float32", (box_rows, 1), 0, strides)


def groups_of(problem, num_groups):
    """Return how many matrices there are of (A, B, D)."""
    if problem.op in K_GROUPED:
        return 1, 1, num_groups
    return (num_groups,) * 3 if problem.op in MASKED else (1, num_groups, 1)


def expected_maps(problem, config, shape):
    """Return what the kernel's six maps must be, None for one that is not encoded."""
    m, n, k, num_groups = shape
    groups_a, groups_b, groups_d = groups_of(problem, num_groups)
    maps = [input_map(problem, config, "a", m, k, groups_a), input_map(problem, config, "b", n, k, groups_b)]
    maps.append(d_map(problem, config, m, n, groups_d) if _C.is_staged(problem, config) else None)
    has_vectors, steps = "fp8" in problem.op and problem.scale_layout == "mn_major", -(-k // 128)
    maps.append(scale_map(stub_operands.SCALE_A, m, steps, groups_a, config.block_m) if has_vectors else None)
    has_both = has_vectors and problem.recipe == "1d1d"
    maps.append(scale_map(stub_operands.SCALE_B, n, steps, groups_b, config.block_n) if has_both else None)
    is_cut = config.cluster_n == 1 and problem.a_major == "k" and problem.group_layout != "blocks"
    if not is_cut or m % config.block_m == 0:
        return [*maps, None]
    maps[0] = maps[0] if m >= config.block_m else None
    return [*maps, input_map(problem, config, "tail", m, k, groups_a)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_launches_of_every_variant(driver, shape):
    problems = make_grouped_variants()
    launched, events = driver.call(
        launch_variants, shape, [problem for problem in problems if problem.group_layout == "joint"]
    )
    maps, launches = (
        {event["map"]: event for event in select(events, "TensorMapEncodeTiled")},
        select(events, "LaunchKernelEx"),
    )
    assert len(launches) == len(launched) > 200
    assert all(
        event["valid"] and event["rank"] == 3 and event["interleave"] == event["fill"] == 0 for event in maps.values()
    )
    for (problem, config), launch in zip(launched, launches, strict=True):
        got = [describe(maps[number]) if number != NO_MAP else None for number in launch["maps"]]
        assert got == expected_maps(problem, config, shape), (problem, config)
        assert launch["block"] == [_C.num_threads(problem, config), 1, 1] and launch["smem"] == _C.smem_bytes(
            problem, config
        )
        assert (
            launch["stream"] == 7
            and not launch["extra"]
            and launch["cluster"] == (cluster_size(config) if cluster_size(config) > 1 else 0)
        )
        assert launch["grid"] == [expected_grid(problem, config, shape), 1, 1], (problem, config)
        check_params(read_params(launch), problem, config, shape)
        check_group_params(read_group_params(launch), problem, shape)


def cluster_size(config) -> int:
    return config.cluster_m * config.cluster_n


def expected_grid(problem, config, shape, sms=132, limit=60) -> int:
    """Return the CTAs of a launch on a whole GPU that places `limit` clusters."""
    m, n, _, num_groups = shape
    blocks = _C.blocks_per_sm(problem, config)
    tiles = -(-m // (config.block_m * config.cluster_m)) * -(-n // (config.block_n * config.cluster_n))
    tiles *= 1 if problem.op in CONTIGUOUS else num_groups
    clusters = min(max(sms * blocks // cluster_size(config), 1), tiles)
    return cluster_size(config) * (min(clusters, limit * blocks) if cluster_size(config) > 1 else clusters)


def check_params(params, problem, config, shape):
    m, n, k, _ = shape
    assert (params["m"], params["n"], params["k"], params["alpha"], params["beta"]) == (m, n, k, 1.0, 1.0)
    sized = _C.Problem(**(problem.as_dict() | dict(zip(("m", "n", "k", "num_groups"), shape, strict=True))))
    limit = 60 if cluster_size(config) > 1 else 0
    geometry = _C.launch_geometry(sized, config, sm_count=132, max_clusters=limit)
    assert [params[name] for name in ("num_m_tiles", "num_n_tiles", "band")] == [
        -(-m // config.block_m),
        -(-n // config.block_n),
        geometry["band"],
    ]
    assert params["head_left"] == params["head_mid"] == params["head_right"] == params["zero"] == 0
    pitch = pitch_of(n, "float32" if problem.d_dtype == "fp32" else "bfloat16")
    assert (params["d"], params["d_stride_m"]) == (stub_operands.D, pitch)
    c = {"none": (0, 0), "accumulate": (stub_operands.D, pitch), "general": (stub_operands.C, n + 1)}[problem.c_mode]
    assert (params["c"], params["c_stride_m"]) == c
    check_scales(params, problem, m, n, -(-k // 128))


def check_scales(params, problem, m, n, steps):
    names = ("scale_a", "scale_a_stride_mn", "scale_a_stride_k", "scale_b", "scale_b_stride_mn", "scale_b_stride_k")
    row_major, major = (steps + 3, 1), problem.scale_layout == "mn_major"
    a, b = ((1, -(-rows // 4) * 4 + 4) if major else row_major for rows in (m, n))
    expected = (stub_operands.SCALE_A, *a, stub_operands.SCALE_B, *(b if problem.recipe == "1d1d" else row_major))
    assert tuple(params[name] for name in names) == (expected if "fp8" in problem.op else (0,) * 6)


def scale_stride(rows, steps, layout) -> int:
    return (-(-rows // 4) * 4 + 4) * (steps + 1) if layout == "mn_major" else (rows + 1) * (steps + 3)


def check_group_params(params, problem, shape):
    m, n, k, num_groups = shape
    steps, is_fp8 = -(-k // 128), "fp8" in problem.op
    assert (params["groups"], params["num_groups"]) == (stub_operands.GROUPS, num_groups)
    assert params["a"] == params["b"] == params["map_slots"] == 0
    pitch = pitch_of(n, "float32" if problem.d_dtype == "fp32" else "bfloat16")
    assert params["d_stride_group"] == (0 if problem.op in CONTIGUOUS else (m + 2) * pitch)
    assert (
        params["c_stride_group"]
        == {"none": 0, "accumulate": (m + 2) * pitch, "general": (m + 1) * (n + 1)}[problem.c_mode]
    )
    assert params["scale_a_stride_group"] == (
        scale_stride(m, steps, problem.scale_layout) if is_fp8 and problem.op in MASKED else 0
    )
    b_rows, b_layout = (n, problem.scale_layout) if problem.recipe == "1d1d" else (-(-n // 128), "any")
    assert params["scale_b_stride_group"] == (
        scale_stride(b_rows, steps, b_layout) if is_fp8 and problem.op not in K_GROUPED else 0
    )


# Blocks of K.


SLOTS = 1 << 47


def use_memory():
    """Take the memory of calls from nowhere; return the list of (rows, columns, stream) asked for."""
    asked = []

    def empty_fp8(rows, columns, ordinal, handle):
        asked.append((rows, columns, handle))
        return _C.TensorView(SLOTS, [rows, columns], [columns, 1], "float8_e4m3fn", ordinal)

    stream.empty_fp8 = empty_fp8
    return asked


def launch_blocks(shape, problems):
    """As launch_variants; return also the memory asked for."""
    asked = use_memory()
    return launch_variants(shape, problems), asked


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_have_template_maps_and_slots(driver, shape):
    problems = [problem for problem in make_grouped_variants() if problem.group_layout == "blocks"]
    (launched, asked), events = driver.call(launch_blocks, shape, problems)
    maps, launches = (
        {event["map"]: event for event in select(events, "TensorMapEncodeTiled")},
        select(events, "LaunchKernelEx"),
    )
    assert len(launches) == len(launched) > 20
    for (problem, config), memory, launch in zip(launched, asked, launches, strict=True):
        got = [describe(maps[number]) if number != NO_MAP else None for number in launch["maps"]]
        assert got == expected_maps(problem, config, shape), (problem, config)
        assert memory == (1, launch["grid"][0] * 2 * (config.num_stages + 1) * 128, 7)
        params = read_group_params(launch)
        assert (params["a"], params["b"], params["map_slots"]) == (stub_operands.A, stub_operands.B, SLOTS)
        check_group_params(params | dict.fromkeys(("a", "b", "map_slots"), 0), problem, shape)
        check_params(read_params(launch), problem, config, shape)


def test_kernels_that_are_launched_directly_walk_as_in_a_call(driver):
    """Sweeps do so, on groups with fewer rows than an alignment has tiles, too."""
    shape, problems = (1024, 6400, 1536, 32), [make_grouped(op, 1, 1, 1, 1) for op in CONTIGUOUS]
    launched, events = driver.call(launch_variants, shape, problems)
    launches = select(events, "LaunchKernelEx")
    for (problem, config), launch in zip(launched, launches, strict=True):
        check_params(read_params(launch), problem, config, shape)
    assert len({read_params(launch)["band"] for launch in launches}) > 1


# Grids.


GEOMETRIES = [
    (make_grouped(FP8, 4096, 2048, 512, 8), 512),
    (make_grouped(FP8, 1000, 2048, 512, 3), 334),
    (make_grouped(BF16, 512, 2048, 512, 8), 512),
    # Groups of whole alignments, which are several tiles.
    (make_grouped(FP8, 256, 1024, 512, 4, alignment=256), 64),
    (make_grouped(FP8, 384, 1088, 3456, 2), 192),
    (make_grouped(FP8, 1024, 6400, 1536, 32), 32),
    (make_grouped("m_grouped_bf16_gemm_contiguous", 640, 5312, 5376, 32), 20),
    (make_grouped(FP8, 6400, 2624, 2304, 4, alignment=256), 1600),
    # A group may have more rows than expected: a band never cuts it for that.
    (make_grouped(BF16, 512, 2048, 512, 8, expected_m=20), 512),
    (make_grouped(K_GROUPED[0], 768, 512, 4096, 4), 768),
    # The rate of the memory would change the band of a dense product of these sizes.
    (make_grouped(K_GROUPED[1], 2048, 4096, 32768, 4), 2048),
    (make_grouped(K_GROUPED[1], 768, 512, 4096, 40, num_sms=20), 768),
    (_C.Problem("batched_fp8_gemm", 4096, 1024, 512, num_groups=6), 4096),
    (_C.Problem("batched_bf16_gemm", 256, 512, 512, num_groups=64), 256),
]


def get_bytes(problem) -> tuple[int, int]:
    """Return the bytes of a row of one group's K, and of an element of D that are read and written."""
    k = -(-problem.k // (problem.num_groups if problem.op in K_GROUPED else 1))
    width = 4 if problem.d_dtype == "fp32" else 2
    return k * (1 if "fp8" in problem.op else 2), width * (1 if problem.c_mode == "none" else 2)


@pytest.mark.parametrize("problem, rows", GEOMETRIES, ids=str)
@pytest.mark.parametrize(
    "tile", [(64, 64, 3, 1, 1), (128, 128, 4, 1, 1), (64, 64, 4, 2, 1), (128, 64, 4, 1, 2)], ids=str
)
def test_geometry(problem, rows, tile):
    block_m, block_n, stages, cluster_m, cluster_n = tile
    config = _C.Config(
        block_m, block_n, stages, block_k=128 if "fp8" in problem.op else 64, cluster_m=cluster_m, cluster_n=cluster_n
    )
    for limit, rate in ((0, 0.0), (5, 0.0), (0, 4800.0)):  # of the memory, which counts for dense products alone
        got = _C.launch_geometry(problem, config, sm_count=132, max_clusters=limit, memory_gbps=rate)
        blocks, sms = (1, problem.num_sms) if problem.num_sms else (_C.blocks_per_sm(problem, config), 132)
        n_tiles, all_tiles = -(-problem.n // (block_n * cluster_n)), -(-problem.m // (block_m * cluster_m))
        tiles = n_tiles * all_tiles * (1 if problem.op in CONTIGUOUS else problem.num_groups)
        clusters = min(sms * blocks // (cluster_m * cluster_n), limit * blocks or tiles, tiles)
        assert got["num_ctas"] == clusters * cluster_m * cluster_n
        assert (got["num_m_tiles"], got["num_n_tiles"]) == (-(-problem.m // block_m), -(-problem.n // block_n))
        tile_rows = block_m * cluster_m
        of_group = -(-rows // tile_rows)
        unit = max(1, problem.alignment // tile_rows)
        shared = -(-of_group // unit) * unit, unit
        walked, groups = (all_tiles, shared) if problem.op in CONTIGUOUS else (of_group, ())
        walk = Walk(config, walked, n_tiles, min(clusters, walked * n_tiles), *get_bytes(problem), *groups)
        assert got["band"] == walk.choose(tiles, is_dense=False, may_have_less=problem.op in MASKED)


@pytest.mark.parametrize(
    "op, sizes, tile, bands",
    [
        (FP8, (128, 5888, 3072, 16), (64, 128, 8), {2}),
        (FP8, (1152, 4352, 1408, 32), (64, 128, 8), {2, 3, 4, 6, 8, 12, 16, 18}),
        (FP8, (6400, 2624, 2304, 4), (128, 128, 5), {2, 3, 4}),
        (FP8, (2432, 2496, 2176, 4), (128, 128, 5), {2, 3, 4, 6, 8, 12}),
        (CONTIGUOUS[1], (1792, 1664, 1152, 32), (64, 128, 8), {2, 4, 6, 8, 12, 16, 24, 28}),
        (CONTIGUOUS[1], (7168, 1472, 1664, 4), (128, 224, 3), {1, 2, 3, 4, 6, 8}),
        (CONTIGUOUS[1], (11136, 1600, 1664, 2), (128, 160, 5), {4}),
    ],
)
def test_groups_that_lie_one_after_the_other_move_few_bytes(op, sizes, tile, bands):
    """Bands with which an H100 took at most 5 % longer than with the best, and up to 19 with those of waves."""
    config = _C.Config(*tile, block_k=128 if op == FP8 else 64)
    assert _C.launch_geometry(make_grouped(op, *sizes), config, sm_count=132)["band"] in bands


def test_several_blocks_share_an_sm():
    config, problem = _C.Config(64, 32, 3), make_grouped("m_grouped_fp8_gemm_masked", 4096, 4096, 512, 8, expected_m=64)
    blocks = _C.blocks_per_sm(problem, config)
    assert blocks > 1
    assert _C.launch_geometry(problem, config, sm_count=132)["num_ctas"] == 132 * blocks


@pytest.mark.parametrize("op", [FP8, BF16])
def test_more_tiles_than_the_kernel_counts(op):
    config = _C.Config(64, 64, 4, block_k=128 if op == FP8 else 64)
    with pytest.raises(ShapeError, match=r"num_groups = 65535: more than 2\^31 tiles"):
        _C.launch_geometry(make_grouped(op, (1 << 31) - 1, (1 << 31) - 1, 512, 65535), config, sm_count=132)
    fits = make_grouped(op, 1 << 15, 1 << 15, 512, 65535)  # 2^18 tiles, of every group where it has its own
    if op == FP8:
        assert _C.launch_geometry(fits, config, sm_count=132)["num_ctas"] >= 132
    else:
        with pytest.raises(ShapeError, match="split the product along n"):
            _C.launch_geometry(fits, config, sm_count=132)


def test_what_a_kernel_depends_on():
    wide = make_grouped(
        FP8, 500, 600, 700, 9, alignment=256, num_sms=60, recipe="1d1d", compiled_dims="n", batch_invariant=True
    )
    identity = _C.kernel_identity(wide)
    assert (identity.m, identity.n, identity.k, identity.num_groups, identity.num_sms) == (1, 600, 1, 1, 0)
    assert identity.recipe == "1d1d" and not identity.batch_invariant
    assert identity == _C.kernel_identity(make_grouped(FP8, 5, 600, 7, 2, recipe="1d1d", compiled_dims="n"))
    masked = make_grouped(BF16, 500, 600, 700, 9, expected_m=48)
    assert _C.kernel_identity(masked) == _C.kernel_identity(make_grouped(BF16, 8, 8, 8, 1))
