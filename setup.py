"""Build deep_gemm: the native module `deep_gemm._C` (no CUDA toolkit, no libtorch) and the two import packages.

`db/` is installed as `tuner.db` and `models/` as `deep_gemm.models`, so that only `deep_gemm` and `tuner` become
importable top-level names, whatever folders the user's own project has.
"""

from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

ParallelCompile("DG_BUILD_JOBS", default=0).install()

extension = Pybind11Extension(
    "deep_gemm._C",
    sorted(glob("csrc/**/*.cpp", recursive=True)),
    include_dirs=["csrc"],
    depends=sorted(glob("csrc/**/*.hpp", recursive=True)),
    cxx_std=20,
    # No fused multiply-add contraction: the heuristic and the forest walk give the same doubles on every host.
    extra_compile_args=["-O2", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"],
    libraries=["dl"],
)

TUNER = [
    "optuna>=4.5,<6",
    "SQLAlchemy>=2.0.37,<3",
    "alembic>=1.13,<2",
    "scikit-learn>=1.5,<2",
    "joblib>=1.4,<2",
    "typer>=0.15,<1",
    "rich>=13,<16",
]
TEST = [
    "pytest>=8,<10",
    "pytest-timeout>=2.3,<3",
    "pytest-xdist>=3.6,<4",
    "hypothesis>=6.100,<7",
    "matplotlib>=3.8,<4",
    "nvidia-cuda-nvrtc>=13.0,<14",
]

setup(
    name="deep_gemm",
    version="0.1.0",
    description=(
        "FP8 and BF16 matrix products for NVIDIA GPUs, compiled at run time, with measured and learned configurations"
    ),
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    package_dir={"deep_gemm": "deep_gemm", "tuner": "tuner", "tuner.db": "db", "deep_gemm.models": "models"},
    packages=[
        "deep_gemm",
        "deep_gemm.jit",
        "deep_gemm.models",
        "tuner",
        "tuner.commands",
        "tuner.db",
        "tuner.db.migrations",
        "tuner.db.migrations.versions",
        "tuner.learn",
        "tuner.measure",
        "tuner.problems",
        "tuner.search",
        "tuner.ship",
    ],
    package_data={
        "deep_gemm": ["include/deep_gemm/*.cuh"],
        "deep_gemm.models": ["*.dgsel", "*.md"],
        "tuner": ["presets/*.json"],
        "tuner.db": ["snapshots/*.db"],
    },
    ext_modules=[extension],
    cmdclass={"build_ext": build_ext},
    install_requires=["torch>=2.9,<2.14", "numpy>=1.26,<3"],
    extras_require={
        "tuner": TUNER,
        "test": TUNER + TEST,
        "demo": TUNER + ["matplotlib>=3.8,<4"],
    },
    entry_points={"console_scripts": ["deep-gemm-tuner=tuner.cli:main"]},
    zip_safe=False,
)
