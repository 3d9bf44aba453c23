"""Build the native module `deep_gemm._C`, without a CUDA toolkit and without libtorch.

Everything else about the package stands in pyproject.toml.
"""

import os
from glob import glob
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

ParallelCompile("DG_BUILD_JOBS", default=0).install()

#: Compiled as one: they include pybind11, which takes the compiler far longer than what they hold. Their anonymous
#: namespaces share their names.
COMBINED = [
    f"csrc/runtime/{name}.cpp"
    for name in (
        "arguments",
        "dispatch",
        "gemm_op",
        "grouped_op",
        "operand_text",
        "policy",
        "tensor_view",
        "torch_access",
        "torch_calls",
    )
]
UNIT = Path("build/combined.cpp")


def write_unit() -> None:
    """Write the file that includes the combined ones; left as it is where nothing changes, or every build would be a
    whole one.
    """
    text = "".join(f'#include "{file.removeprefix("csrc/")}"\n' for file in COMBINED)
    if UNIT.exists() and UNIT.read_text(encoding="utf-8") == text:
        return
    UNIT.parent.mkdir(exist_ok=True)
    draft = UNIT.with_suffix(f".{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(UNIT)  # two builds at once never read half a file


class BuildExt(build_ext):
    """build_ext, with the combined unit written first."""

    def build_extensions(self) -> None:
        """Compile."""
        write_unit()
        super().build_extensions()


extension = Pybind11Extension(
    "deep_gemm._C",
    [str(UNIT), *sorted(set(glob("csrc/**/*.cpp", recursive=True)) - set(COMBINED))],  # what takes longest first
    include_dirs=["csrc"],
    depends=[*sorted(glob("csrc/**/*.hpp", recursive=True)), *COMBINED],
    cxx_std=20,
    # No fused multiply-add contraction: the heuristic and the forest walk give the same doubles on every host.
    extra_compile_args=["-O2", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"],
    libraries=["dl"],
)

setup(ext_modules=[extension], cmdclass={"build_ext": BuildExt})
