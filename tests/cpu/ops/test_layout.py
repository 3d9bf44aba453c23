"""Layouts of FP32 scales."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import deep_gemm
from deep_gemm import utils
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, ShapeError


@pytest.mark.parametrize(
    "x, element_size, expected", [(0, 4, 0), (1, 4, 4), (4, 4, 4), (5, 4, 8), (5, 1, 16), (17, 2, 24), (3, 16, 3)]
)
def test_tma_aligned_size(x, element_size, expected):
    assert deep_gemm.get_tma_aligned_size(x, element_size) == expected


@pytest.mark.parametrize("element_size", [0, 3, 5, 6, 7, 12, 15, 17, 32])
def test_sizes_of_no_dtype(element_size):
    with pytest.raises(ArgumentError, match=f"element_size = {element_size}: must be"):
        deep_gemm.get_tma_aligned_size(5, element_size)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (8, 7), (130, 57), (3, 5, 2), (0, 4), (4, 0)])
def test_mn_major(shape):
    sf = torch.randn(shape)
    got = deep_gemm.get_mn_major_tma_aligned_tensor(sf)
    aligned = -(-shape[-2] // 4) * 4
    assert torch.equal(got, sf) and got.shape == sf.shape
    assert got.stride()[-2:] == (1, aligned) or sf.numel() <= 1
    assert len(shape) == 2 or got.stride(0) == aligned * shape[2]
    assert deep_gemm.get_mn_major_tma_aligned_tensor(got) is got, "a tensor of this layout is not copied"


def test_mn_major_from_any_strides():
    sf = torch.randn(10, 24)
    for view in (sf[:, ::2], sf.t(), sf[1::3], sf[:1].expand(7, 24)):
        assert torch.equal(deep_gemm.get_mn_major_tma_aligned_tensor(view), view)


def test_empty_tensor_of_the_layout():
    got = deep_gemm.get_mn_major_tma_aligned_tensor((6, 3), torch.float32, "cpu")
    assert got.shape == (6, 3) and got.stride() == (1, 8) and got.dtype == torch.float32
    assert deep_gemm.get_mn_major_tma_aligned_tensor([2, 6, 3]).stride() == (24, 1, 8)


def test_transform():
    sf_a, sf_b = torch.randn(300, 6), torch.randn(5, 6)
    for recipe in (None, (1, 128, 128)):
        a = deep_gemm.transform_sf_into_required_layout(sf_a, 300, 700, recipe, is_sfa=True)
        assert torch.equal(a, sf_a) and a.stride() == (1, 300)
        assert deep_gemm.transform_sf_into_required_layout(sf_b, mn=600, k=700, recipe=recipe) is sf_b
    grouped = torch.randn(4, 300, 6)
    assert deep_gemm.transform_sf_into_required_layout(grouped, 300, 700, (1, 1, 128), num_groups=4).stride() == (
        1800,
        1,
        300,
    )
    assert deep_gemm.transform_sf_into_required_layout(sf_a, recipe=(1, 1, 128), disable_ue8m0_cast=True).stride() == (
        1,
        300,
    )


def test_scales_of_groups():
    """Masked groups have scales each; groups of K lie side by side, and a cast per channel has them as the kernels like
    best.
    """
    masked = torch.randn(3, 130, 6)
    got = deep_gemm.transform_sf_into_required_layout(masked, 130, 700, num_groups=3, is_sfa=True)
    assert torch.equal(got, masked) and got.stride() == (132 * 6, 1, 132)
    blocks = torch.randn(3, 5, 6)
    assert deep_gemm.transform_sf_into_required_layout(blocks, 600, 700, num_groups=3) is blocks
    ks = [256, 0, 384]
    for is_sfa in (True, False):
        joint = torch.randn(130, sum(ks) // 128)
        got = deep_gemm.transform_sf_into_required_layout(joint, 130, sum(ks), (1, 1, 128), is_sfa=is_sfa)
        assert torch.equal(got, joint) and got.stride() == (1, 132)
    per_channel = deep_gemm.per_channel_cast_to_fp8(torch.randn(sum(ks), 64), False)[1].t()
    assert deep_gemm.get_mn_major_tma_aligned_tensor(per_channel) is per_channel
    with pytest.raises(ShapeError, match=r"sf.shape = \[3, 130, 6\]: must be \[4, 130, 6\]"):
        deep_gemm.transform_sf_into_required_layout(masked, 130, 700, num_groups=4, is_sfa=True)


@pytest.mark.parametrize("shape", [(130, 6), (1, 6), (2, 5, 3)])
def test_no_graph_is_recorded(shape):
    sf = torch.rand(shape, requires_grad=True)
    for found in (
        deep_gemm.get_mn_major_tma_aligned_tensor(sf),
        deep_gemm.transform_sf_into_required_layout(sf, recipe=(1, 128)),
        deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf),
    ):
        assert found is not sf and not found.requires_grad and found.grad_fn is None
    done = deep_gemm.get_mn_major_tma_aligned_tensor(sf).requires_grad_()
    assert deep_gemm.get_mn_major_tma_aligned_tensor(done) is done
    assert deep_gemm.transform_sf_into_required_layout(sf) is sf


#: Helpers that give the layout, of x [..., m, 256].
HELPERS = {
    "layout": deep_gemm.get_mn_major_tma_aligned_tensor,
    "of that layout": lambda x: deep_gemm.get_mn_major_tma_aligned_tensor(x.mT.contiguous().mT),
    "packed": deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor,
    "transform": lambda x: deep_gemm.transform_sf_into_required_layout(
        x, x.shape[-2], 256 * 128, (1, 128), *x.shape[:-2]
    ),
    "cast": lambda x: deep_gemm.per_token_cast_to_fp8(x, True, scales="mn_major")[1],
}


@pytest.mark.parametrize("name", HELPERS)
def test_tensors_of_vmap_have_no_address(name):
    x = torch.rand(3, 5, 256)
    found = torch.vmap(HELPERS[name])(x)
    assert torch.equal(found, torch.stack([HELPERS[name](one) for one in x]))


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("name, groups", [*((name, ()) for name in HELPERS), ("layout", (3,)), ("packed", (3,))])
def test_one_exported_program_serves_any_number_of_rows(name, groups, is_strict):
    class Model(torch.nn.Module):
        def forward(self, x):
            return HELPERS[name](x)

    def make(m):
        return torch.rand(*groups, m, 256)

    rows = {len(groups): torch.export.Dim("rows", min=2, max=4096)}
    program = torch.export.export(Model(), (make(128),), dynamic_shapes=(rows,), strict=is_strict).module()
    for x in map(make, (128, 2, 131)):
        found, expected = program(x), HELPERS[name](x)
        assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_one_compiled_program_serves_any_number_of_rows():
    counter = CompileCounter()
    compiled = torch.compile(deep_gemm.get_mn_major_tma_aligned_tensor, fullgraph=True, backend=counter)
    for m in (128, 130, 7):
        x = torch.rand(m, 6)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), x) and compiled(x).stride() == (1, deep_gemm.align(m, 4))
    assert counter.frame_count == 1


def test_wrong_inputs():
    with pytest.raises(ShapeError, match="sf.ndim = 1"):
        deep_gemm.get_mn_major_tma_aligned_tensor(torch.zeros(4))
    with pytest.raises(DtypeError, match="sf.dtype = torch.int32"):
        deep_gemm.get_mn_major_tma_aligned_tensor(torch.zeros(4, 4, dtype=torch.int32))
    with pytest.raises(ShapeError, match=r"sf.shape = \[5, 6\]: must be \[5, 7\]"):
        deep_gemm.transform_sf_into_required_layout(torch.zeros(5, 6), 600, 800)
    with pytest.raises(ArgumentError, match="target = 'fp8'"):
        deep_gemm.transform_sf_into_required_layout(torch.zeros(5, 6), target="fp8")
    with pytest.raises(DtypeError, match="sf.dtype = torch.float64: scales on SM90 are torch.float32"):
        deep_gemm.transform_sf_into_required_layout(torch.zeros(5, 6).double(), 600, 700)
    with pytest.raises(ArgumentError, match="recipe = "):
        deep_gemm.transform_sf_into_required_layout(torch.zeros(5, 6), recipe=(128, 128, 128))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (((4, 4), torch.float32, "foo"), ArgumentError, "device = 'foo': must be a torch.device"),
        (((4, 4), torch.float32, 1.5), ArgumentError, "device = 1.5"),
        (((4, 4), torch.float32, "cuda:63"), DeviceError, "device = cuda:63: torch cannot use it"),
        (((4, 4), torch.quint4x2), ArgumentError, "dtype = torch.quint4x2: must be a torch.dtype of plain numbers"),
        (((2**31 - 1, 2**31 - 1),), ShapeError, "sf = .*: takes more bytes than any memory has"),
    ],
)
def test_empty_tensors_that_there_cannot_be(arguments, error, message):
    with pytest.raises(error, match=message):
        deep_gemm.get_mn_major_tma_aligned_tensor(*arguments)
    if len(arguments) != 2:
        with pytest.raises(error, match=message):
            deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(arguments[0], *arguments[2:])


def test_the_fastest_alignment():
    get = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout
    assert get() == get(0, 1) == get(expected_m=7, num_groups=4) == 128
    for arguments, name in ((("nk",), "expected_m"), ((-1,), "expected_m"), ((None, 0), "num_groups")):
        with pytest.raises(ArgumentError, match=f"{name} = .*: must be an int"):
            get(*arguments)


def test_utils_holds_the_same_functions():
    assert all(
        getattr(utils, name) is getattr(deep_gemm, name) for name in (*utils.layout.__all__, *utils.math.__all__)
    )


def test_rows_between_groups_are_not_skipped_here():
    """psum_layout is for kernels of SM100."""
    scales = torch.rand(130, 4)
    made = deep_gemm.transform_sf_into_required_layout(scales, 130, 512, (1, 128), is_sfa=True, psum_layout=None)
    assert torch.equal(made, scales)
    with pytest.raises(deep_gemm.errors.ArgumentError, match="psum_layout = .*: SM100 only; pass None"):
        deep_gemm.transform_sf_into_required_layout(scales, 130, 512, psum_layout=torch.tensor([100]))
