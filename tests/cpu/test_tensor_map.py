"""Tensor maps, launch geometry and kernel arguments, as the (stub) driver receives them."""

import pytest

from deep_gemm import _C
from deep_gemm.errors import ShapeError
from tests.fakes import stub_driver
from tests.fakes.stub_driver import load_kernel, make_operands, matrix, read_params, select

FP8_MAP, BF16_MAP = 0, 9
SHAPES = [(1, 8, 16), (3, 5, 16), (64, 128, 128), (65, 136, 144), (300, 500, 1000), (8192, 7168, 2048)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with stub_driver.start(tmp_path_factory.mktemp("stub")) as stub:
        yield stub


def launch_space(shape):
    """Launch every config of the default space on `shape`; return the configs' fields."""
    configs = _C.get_default_space(_C.get_device())
    for config in configs:
        load_kernel(config).launch(*make_operands(*shape), alpha=0.25, stream=7)
    return [(c.block_m, c.block_n, c.cluster_m, c.cluster_n, _C.num_threads(c), _C.smem_bytes(c)) for c in configs]


def expected_maps(config, shape):
    """Return (type, dims, pitch, box, swizzle) of the maps of A, B and D by the contract of the kernels."""
    (block_m, block_n, cluster_m, cluster_n, _, _), (m, n, k) = config, shape
    pitch = -(-k // 16) * 16 + 16
    pitch_d = 2 * (-(-n // 8) * 8 + 8)
    slab = max(width for width in (8, 16, 32, 64) if block_n % width == 0)
    swizzle = {8: 0, 16: 1, 32: 2, 64: 3}[slab]
    rows_a = block_m // 2 if cluster_n == 2 else min(block_m, -(-m // 8) * 8)
    return [
        (FP8_MAP, [k, m], pitch if m > 1 else -(-k // 16) * 16, [128, rows_a], 3),
        (FP8_MAP, [k, n], pitch + 32, [128, block_n // cluster_m], 3),
        (BF16_MAP, [max(n // 8 * 8, 8), m], pitch_d if m > 1 else -(-2 * n // 16) * 16, [slab, 64], swizzle),
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_launch_of_the_space(driver, shape):
    configs, events = driver.call(launch_space, shape)
    maps, launches = select(events, "TensorMapEncodeTiled"), select(events, "LaunchKernelEx")
    assert len(launches) == len(configs)
    assert all(event["valid"] for event in maps)
    for config, launch in zip(configs, launches):
        check_launch(config, shape, launch, {event["map"]: event for event in maps})


def check_launch(config, shape, launch, maps):
    block_m, block_n, cluster_m, cluster_n, threads, smem_bytes = config
    got = [maps[number] for number in launch["maps"]]
    assert [(e["type"], e["dims"], e["pitch"], e["box"], e["swizzle"]) for e in got] == expected_maps(config, shape)
    assert [e["address"] for e in got] == [1 << 40, 1 << 42, 1 << 44]
    assert all(e["interleave"] == 0 and e["fill"] == 0 and e["promotion"] == 3 for e in got)
    cluster = cluster_m * cluster_n
    assert launch["block"] == [threads, 1, 1] and launch["smem"] == smem_bytes
    assert launch["cluster"] == (cluster if cluster > 1 else 0)
    assert launch["stream"] == 7 and not launch["extra"] and launch["device"] == 0
    assert launch["grid"][0] % cluster == 0 and 0 < launch["grid"][0] <= 132
    check_params(read_params(launch), shape, block_m, block_n)


def check_params(params, shape, block_m, block_n):
    m, n, k = shape
    steps = -(-k // 128)
    assert (params["m"], params["n"], params["k"]) == shape
    assert (params["num_m_tiles"], params["num_n_tiles"]) == (-(-m // block_m), -(-n // block_n))
    assert (params["scale_a"], params["scale_b"], params["d"]) == (1 << 41, 1 << 43, 1 << 44)
    assert m == 1 or params["d_stride_m"] == -(-n // 8) * 8 + 8
    assert (params["scale_a_stride_m"], params["scale_a_stride_k"]) == (steps + 3, 1)
    assert (params["scale_b_stride_n"], params["scale_b_stride_k"]) == (steps + 5, 1)
    assert params["alpha"] == 0.25 and params["reserved"] == 0


def launch_wide():
    """Launch on operands whose sizes are the largest and whose strides, in elements and bytes, pass 2^31."""
    m, n, k = (1 << 31) - 1, 128, (1 << 31) - 1
    steps = -(-k // 128)
    a, b = matrix(1 << 63, m, k, 1 << 32, "float8_e4m3fn"), matrix(1 << 58, n, k, 1 << 38, "float8_e4m3fn")
    scale_a = _C.TensorView(1 << 61, [m, steps], [1, 1 << 33], "float32")
    scale_b = _C.TensorView(1 << 62, [1, steps], [1 << 40, 1 << 34], "float32")
    load_kernel(_C.Config(128, 128, 4)).launch(a, scale_a, b, scale_b, matrix(16, m, n, 1 << 24, "bfloat16"))


def test_sizes_beyond_32_bits_do_not_wrap(driver):
    _, events = driver.call(launch_wide)
    maps, (launch,) = select(events, "TensorMapEncodeTiled"), select(events, "LaunchKernelEx")
    params = read_params(launch)
    assert maps[0]["dims"] == [(1 << 31) - 1] * 2 and maps[0]["pitch"] == 1 << 32
    assert maps[1]["pitch"] == 1 << 38 and maps[2]["pitch"] == 1 << 25
    assert params["scale_a_stride_k"] == 1 << 33 and params["scale_b_stride_k"] == 1 << 34
    assert params["num_m_tiles"] == 1 << 24


def brute_force_band(config, m_cluster_tiles, clusters):
    def rows(band):
        return band * config.cluster_m * config.block_m + -(-clusters // band) * config.cluster_n * config.block_n

    return min(range(1, min(32, m_cluster_tiles) + 1), key=rows)


@pytest.mark.parametrize("config", [_C.Config(64, 8, 8), _C.Config(128, 112, 4, cluster_m=2), _C.Config(256, 128, 3, cluster_n=2)], ids=str)
def test_geometry(config):
    size = config.cluster_m * config.cluster_n
    for m, n, num_sms, limit in [(1, 1, 0, 0), (5000, 4000, 0, 0), (5000, 4000, 1, 0), (300, 4000, 77, 0), (9000, 9000, 0, 60), (64, 300, 500, 0)]:
        got = _C.launch_geometry(config, m, n, num_sms=num_sms, sm_count=132, max_clusters=limit)
        m_tiles, n_tiles = -(-m // config.block_m), -(-n // config.block_n)
        m_clusters, n_clusters = -(-m_tiles // config.cluster_m), -(-n_tiles // config.cluster_n)
        clusters = min(max(min(num_sms or 132, 132) // size, 1), limit or 132, m_clusters * n_clusters)
        assert got["num_ctas"] == clusters * size
        assert (got["num_m_tiles"], got["num_n_tiles"]) == (m_tiles, n_tiles)
        assert got["band"] == brute_force_band(config, m_clusters, clusters)


def test_more_tiles_than_the_kernel_counts():
    with pytest.raises(ShapeError, match="2\\^31 tiles"):
        _C.launch_geometry(_C.Config(64, 8, 8), (1 << 31) - 1, (1 << 31) - 1, sm_count=132)
