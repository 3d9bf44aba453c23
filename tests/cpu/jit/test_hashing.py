"""The hashes: what must change the cache's key, the kernel hash and the tree hash, and what must not."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deep_gemm import _C
from deep_gemm.errors import ProblemError
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import cache, generator, hashing, nvcc, nvrtc, plain_kernels
from tests.fakes.compiler import install_nvcc
from tests.fakes.grouped_variants import GROUPED_OPS
from tests.fakes.variants import OPS

OP = "fp8_gemm"
SOURCE = '#include "deep_gemm/types.cuh"\nextern "C" __global__ void kernel() {}\n'
TOOLCHAIN = SimpleNamespace(kind="nvcc", version_text="13.0.88", fingerprint="f" * 64, flags=("-O3", "-cubin"))
HEADERS = {"deep_gemm/types.cuh": "struct A {};", "deep_gemm/ptx.cuh": "struct B {};"}


def key(source: str = SOURCE, headers: dict = HEADERS, **changes) -> str:
    return hashing.compile_key(source, headers, SimpleNamespace(**{**vars(TOOLCHAIN), **changes}))


# ---- the cache's key ----


@pytest.mark.parametrize(
    "change",
    [
        {"source": SOURCE + " "},
        {"source": SOURCE.replace("kernel", "other")},
        {"source": SOURCE + "// a comment moves line numbers\n"},
        {"headers": {**HEADERS, "deep_gemm/types.cuh": "struct A { int x; };"}},
        {"headers": {"deep_gemm/types.cuh": "struct A {};"}},
        {"headers": {**HEADERS, "deep_gemm/more.cuh": ""}},
        {"headers": {"deep_gemm/types.cuh": "struct B {};", "deep_gemm/ptx.cuh": "struct A {};"}},
        {"kind": "nvrtc"},
        {"version_text": "13.0.89"},
        {"version_text": "13.1.88"},
        {"fingerprint": "e" * 64},
        {"flags": ("-O2", "-cubin")},
        {"flags": ("-O3", "-cubin", "-lineinfo")},
        {"flags": ("-cubin", "-O3")},
    ],
    ids=repr,
)
def test_key_changes_with_what_determines_the_bytes(change):
    assert key(**change) != key()


@pytest.mark.parametrize(
    ("module", "name", "value"), [(cache, "SCHEMA", cache.SCHEMA + 1), (hashing, "ARCH", "sm_100a")]
)
def test_key_changes_with_schema_and_arch(monkeypatch, module, name, value):
    before = key()
    monkeypatch.setattr(module, name, value)
    assert key() != before


def test_key_does_not_depend_on_the_order_of_headers():
    assert key(headers=dict(reversed(HEADERS.items()))) == key()


def test_key_does_not_depend_on_the_process(tmp_path):
    compiler = install_nvcc(tmp_path)
    program = (
        f"from deep_gemm.jit import hashing, nvcc; from pathlib import Path;print(hashing.compile_key({SOURCE!r},"
        f" hashing.get_included_headers({SOURCE!r}), nvcc.Nvcc(Path({str(compiler)!r}))))"
    )
    changes = {
        "HOME": "/nowhere",
        "DG_JIT_CACHE_DIR": "/nowhere",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Tokyo",
        "PYTHONHASHSEED": "77",
        "USER": "x",
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **changes}
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == hashing.compile_key(SOURCE, hashing.get_included_headers(SOURCE), nvcc.Nvcc(compiler))


def test_binary_of_nvcc_is_in_the_key(tmp_path):
    one, two = nvcc.Nvcc(install_nvcc(tmp_path / "one")), nvcc.Nvcc(install_nvcc(tmp_path / "two", remark="patched"))
    assert one.version_text == two.version_text
    assert hashing.compile_key(SOURCE, HEADERS, one) != hashing.compile_key(SOURCE, HEADERS, two)


def test_build_of_nvrtc_is_in_its_fingerprint(tmp_path):
    for folder, content in (("one", b"build 1"), ("two", b"build 2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libnvrtc.so.13").write_bytes(content)
    one, two = (nvrtc._fingerprint(tmp_path / folder / "libnvrtc.so.13") for folder in ("one", "two"))
    (tmp_path / "two" / "libnvrtc-builtins.so.13.0").write_bytes(b"x")
    assert one != two != nvrtc._fingerprint(tmp_path / "two/libnvrtc.so.13")


# ---- headers ----


def test_included_headers_are_transitive_and_sorted():
    headers = hashing.get_included_headers('#include "deep_gemm/fp8_gemm.cuh"\n')
    assert list(headers) == sorted(headers)
    assert {"deep_gemm/fp8_gemm.cuh", "deep_gemm/sm90/ptx/ptx.cuh", "deep_gemm/types.cuh"} <= set(headers)


@pytest.mark.parametrize(
    "line",
    [
        "// nothing",
        '#include "deep_gemm/none_such.cuh"',
        '#include "../secret.cuh"',
        "#include <cuda.h>",
        '#include "deep_gemm/../jit/x.cuh"',
    ],
)
def test_only_the_packages_headers_are_read(line):
    assert hashing.get_included_headers(line) == {}


# ---- comments ----


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("int a; // why\nint b;", "int a; int b; "),
        ("int a; /* why\n so */ int b;", "int a; int b; "),
        ('asm("// kept"); // dropped', 'asm("// kept"); '),
        (r'f("a\"// kept");', r'f("a\"// kept"); '),
        ("u32 n = 1'000'000; // dropped\nchar c = '\"'; // dropped", "u32 n = 1'000'000; char c = '\"'; "),
        ("#pragma once\n\n  #  define A   1 // x\nint   a;\n", "\n#pragma once\n\n# define A 1\nint a; "),
        ("#define A \\\n  1\nint a;", "\n#define A 1\nint a; "),
    ],
)
def test_comments_and_layout_are_stripped(text, stripped):
    assert hashing.strip_comments(text) == stripped


def test_texts_are_stripped_line_by_line_as_they_are_as_a_whole():
    generator = random.Random(1)
    parts = [
        "int a",
        " ",
        "\t",
        "\n",
        "\n#",
        "//",
        '"',
        "'",
        "1'0",
        '\\"',
        "\r",
        "\f",
        "/",
        "*",
        "/*",
        "*/",
        "\\\n",
        "b;",
    ]
    for size in range(2000):
        text = "".join(generator.choices(parts, k=size % 40))
        assert hashing.strip_comments(text) == hashing._strip(text), repr(text)


# ---- the kernel hash ----


def test_kernel_hash_is_stable_and_known_only_for_known_ops(few_sources):
    assert len(fresh_kernel_hash()) == 64 and fresh_kernel_hash() == fresh_kernel_hash()
    with pytest.raises(ProblemError, match="none_such"):
        hashing.kernel_hash("none_such")


#: The kernels of the dense ops. With another hash neither what was measured of them nor selectors trained on that are
#: used any more: change one only together with a new sweep, or with an entry of deep_gemm/older_kernels.py.
FROZEN_KERNEL_HASHES = {
    "fp8_gemm": "dd9eff728619ba7bfa11e9f980ee31438f667a83c926401a2f94bbbe5abbdd86",
    "bf16_gemm": "af341a040db30649f2c8fb58798bd1de1fb71eb5d40dc794a8f4829ef4027321",
}


@pytest.mark.parametrize("op, kernel_hash", FROZEN_KERNEL_HASHES.items())
def test_kernel_hashes_of_the_measured_kernels_are_frozen(op, kernel_hash):
    assert hashing.kernel_hash(op) == kernel_hash


def base_hash(op: str = OP, sources: tuple = ("int a; // x",), headers: dict = HEADERS) -> str:
    return hashing.hash_kernels(op, list(sources), headers)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "bf16_gemm"},
        {"sources": ("int b;",)},
        {"sources": ("int a;", "int b;")},
        {"headers": {**HEADERS, "deep_gemm/ptx.cuh": "struct C {};"}},
    ],
    ids=repr,
)
def test_kernel_hash_changes_with_code(change):
    assert base_hash(**change) != base_hash()


@pytest.mark.parametrize(
    "change",
    [{"sources": ("int  a;\n\n/* y */",)}, {"headers": {name: f"// note\n{text}\n" for name, text in HEADERS.items()}}],
    ids=repr,
)
def test_kernel_hash_ignores_comments_and_layout(change):
    assert base_hash(**change) == base_hash()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (nvcc, "FLAGS", (*nvcc.FLAGS, "-lineinfo")),
        (nvrtc, "FLAGS", nvrtc.FLAGS[:-1]),
        (hashing, "_C", SimpleNamespace(LAUNCH_ABI=_C.LAUNCH_ABI + 1)),
    ],
    ids=["nvcc flags", "nvrtc flags", "LAUNCH_ABI"],
)
def test_kernel_hash_changes_with_flags_and_abi(monkeypatch, module, name, value):
    before = base_hash()
    monkeypatch.setattr(module, name, value)
    assert base_hash() != before


def test_headers_of_other_ops_do_not_count(few_sources, monkeypatch, tmp_path):
    include = tmp_path / "include/deep_gemm"
    shutil.copytree(hashing._INCLUDE / "deep_gemm", include)
    before = fresh_kernel_hash()
    monkeypatch.setattr(hashing, "_INCLUDE", tmp_path / "include")
    (include / "another_op.cuh").write_text("struct AnotherOp {};")
    assert fresh_kernel_hash() == before
    with open(include / "sm90/ptx/ptx.cuh", "a") as stream:
        stream.write("struct Changed {};\n")
    assert fresh_kernel_hash() != before


def test_headers_of_grouped_kernels_do_not_reach_the_dense_ones(few_sources, monkeypatch, tmp_path):
    """A header that only grouped kernels include may change without a change of the dense kernels' hashes."""
    shutil.copytree(hashing._INCLUDE, tmp_path / "include")
    dense = {name for op in OPS for name in hashing.get_included_headers("\n".join(few_sources(op)))}
    grouped = {name for op in GROUPED_OPS for name in hashing.get_included_headers("\n".join(few_sources(op)))}
    assert grouped - dense and grouped & dense, "grouped kernels have headers of their own and share others"
    for name in grouped - dense:
        with open(tmp_path / "include" / name, "a") as stream:
            stream.write("struct Changed {};\n")
    before = {op: fresh_kernel_hash(op) for op in (*OPS, *GROUPED_OPS)}
    monkeypatch.setattr(hashing, "_INCLUDE", tmp_path / "include")
    assert all(fresh_kernel_hash(op) == before[op] for op in OPS)
    assert all(fresh_kernel_hash(op) != before[op] for op in GROUPED_OPS)


def fresh_kernel_hash(op: str = OP) -> str:
    hashing._read_header.cache_clear()
    try:
        return hashing.kernel_hash.__wrapped__(op)
    finally:
        hashing._read_header.cache_clear()


# ---- the tree hash ----


def test_tree_hash_needs_the_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(hashing, "_PACKAGE", tmp_path / "site-packages/deep_gemm")
    assert hashing.tree_hash() is None


def test_tree_hash_changes_with_native_code_headers_python_and_the_gpu_suite(monkeypatch, tmp_path):
    package = tmp_path / "deep_gemm"
    sources = [
        tmp_path / "csrc/core/a.cpp",
        tmp_path / "csrc/a.hpp",
        package / "include/deep_gemm/a.cuh",
        package / "jit/generator.py",
        package / "jit/plain_kernels.py",
        package / "logits.py",
        package / "testing/numeric.py",
        tmp_path / "tests/gpu/op_jobs.py",
    ]
    for path in sources:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    monkeypatch.setattr(hashing, "_PACKAGE", package)
    monkeypatch.setattr(hashing, "_INCLUDE", package / "include")
    hashes = [hashing.tree_hash()]
    for path in sources:
        path.write_text("2")
        hashes.append(hashing.tree_hash())
    for apart in (package / "op_docs.py", tmp_path / "tests/cpu/test_a.py", tmp_path / "tuner/a.py"):
        apart.parent.mkdir(parents=True, exist_ok=True)
        apart.write_text("not part of it")
    for native in sources[:3]:
        native.write_text("// why\n2")
    assert len(set(hashes)) == len(sources) + 1 and hashing.tree_hash() == hashes[-1]


def test_texts_that_are_apart_exist():
    assert all((hashing._PACKAGE / name).is_file() for name in hashing._APART)


def test_every_plain_kernel_has_a_hash_of_its_own():
    hashes = {hashing.kernel_hash(hashing.name_plain(name)) for name in plain_kernels.PLAIN_KERNELS}
    assert len(hashes) == len(plain_kernels.PLAIN_KERNELS)


def test_package_has_its_headers():
    assert Path(hashing._INCLUDE / "deep_gemm/types.cuh").is_file()


# ---- what the kernel hash has ----


@pytest.mark.parametrize("op", [op for op, kind in OP_KINDS.items() if kind.is_logits])
def test_every_number_of_math_warpgroups_is_in_a_canonical_case(op):
    """The kernel hash must change where only the code of three math warpgroups does."""
    device = _C.Device.known("h200")
    cases = generator.canonical_cases(op)
    legal = {
        config.block_n
        for problem, _ in cases
        for config in (_C.Config(1, keys, stages) for keys in range(64, 320, 64) for stages in range(2, 9))
        if _C.is_legal(problem, config, device)
    }
    assert {config.block_n for _, config in cases} == legal and len(legal) > 1


def test_columns_of_every_tile_of_logits_are_those_of_this_hash():
    """Of the constants that the generator writes, only the columns of a chain depend on tokens and heads that no
    canonical case has. Where this fails, add cases that show the difference (the kernel hash must change), then the
    table's new digest.
    """
    table = [
        _C.logits_columns(
            _C.Problem("fp8_mqa_logits", tokens, 1, 128, heads=heads), _C.Config(tokens, 64 * groups, 2 * groups)
        )
        for heads in range(8, 129, 8) for tokens in range(1, 17) for groups in (2, 3)
    ]  # fmt: skip
    assert hashlib.sha256(repr(table).encode()).hexdigest()[:16] == "a543238402fa1795"


@pytest.mark.parametrize("knob", _C.LOOP_KNOBS)
def test_every_knob_is_in_a_canonical_case(knob):
    device = _C.Device.known("h200")
    for op in (op for op, kind in OP_KINDS.items() if not kind.is_logits):
        cases, block_k = generator.canonical_cases(op), _C.stage_k(op)
        tiles = [_C.Config(side, side, 3, block_k=block_k, **{knob: 1}) for side in (64, 128)]
        tiles.append(_C.Config(256, 128, 3, block_k=block_k, **{knob: 1}))
        problems = {problem for problem, _ in cases}
        may_use = any(_C.is_legal(problem, tile, device) for problem in problems for tile in tiles)
        assert any(getattr(config, knob) for _, config in cases) == may_use, op
