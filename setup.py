"""Build the native module `deep_gemm._C`, without a CUDA toolkit and without libtorch.

Everything else about the package stands in pyproject.toml.
"""

import os
from glob import glob
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup


def is_outdated(object_file: str, source: str) -> bool:
    """Return whether `source` must be compiled again: it, a file that it included last time, or this script is newer.

    The compiler writes what a source includes beside the object (-MMD).
    """
    built, record = Path(object_file), Path(object_file).with_suffix(".d")
    if not built.exists() or not record.exists():
        return True
    read = [source, __file__, *record.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2].split()]
    return any(not Path(name).exists() or Path(name).stat().st_mtime > built.stat().st_mtime for name in read)


ParallelCompile("DG_BUILD_JOBS", default=0, needs_recompile=is_outdated).install()

extension = Pybind11Extension(
    "deep_gemm._C",
    sorted(glob("csrc/**/*.cpp", recursive=True)),
    include_dirs=["csrc"],
    depends=sorted(glob("csrc/**/*.hpp", recursive=True)),
    cxx_std=20,
    # No fused multiply-add contraction: the heuristic and the forest walk give the same doubles on every host.
    extra_compile_args=["-O2", "-g0", "-MMD", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"],
    libraries=["dl"],
)

# DG_BUILD_NATIVE=0: an editable install of a clone whose module is built in place (`make setup`).
setup(ext_modules=[] if os.environ.get("DG_BUILD_NATIVE") == "0" else [extension], cmdclass={"build_ext": build_ext})
