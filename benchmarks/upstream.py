"""DeepGEMM itself as a peer of the same run: an installed package of it, loaded beside this one and called alike.

Example: python -m benchmarks.upstream FOLDER --jobs 16
         python -m benchmarks.dense_fp8 --deepgemm FOLDER

FOLDER is the package's own, the one with its __init__.py: the copy that another project carries (vLLM: the folder
`third_party/deep_gemm` in its own), or a DeepGEMM that was installed beside (`pip install --target`), since its module
has the name of this one. It must be built for this Python and this torch. It compiles each kernel with NVCC at its
first call, some seconds each on one core, into folders of its own below DG_JIT_CACHE_DIR, which both packages read; the
first command does that ahead, in several processes.

Its variant of a layout is called "deepgemm <layout>". Layouts that it lacks, and those in which its D is not right, are
left out, and the row says why.
"""

import argparse
import importlib.util
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import ModuleType

import torch

import deep_gemm
from deep_gemm import _C

from .product import Product
from .speedup import UPSTREAM

#: What it is called in this process, where `deep_gemm` is the library under test.
MODULE = "deepgemm_upstream"
#: Folders in the text of an error.
FOLDERS = re.compile(r"(?:/[^\s/:]+)+/")
#: Processes that compile at once; each also holds the operands of one problem on the GPU.
JOBS = 12


def load(folder: Path) -> ModuleType:
    """Return the DeepGEMM in `folder`, loaded under a name of its own, without early starts.

    Raises:
        ValueError: there is none, it is this library, or it does not load into this process.
    """
    init = folder.resolve() / "__init__.py"
    if not init.is_file():
        raise ValueError(f"{folder}: no __init__.py in it; name the folder of DeepGEMM's package itself")
    if init == Path(deep_gemm.__file__).resolve():
        raise ValueError(f"{folder}: this library itself; name the folder of another DeepGEMM")
    spec = importlib.util.spec_from_file_location(MODULE, init, submodule_search_locations=[str(init.parent)])
    module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a package of another build raises
        for name in [name for name in sys.modules if name.partition(".")[0] == MODULE]:
            del sys.modules[name]
        raise ValueError(
            f"{folder}: DeepGEMM does not load: {describe_error(error)}; it must be built for"
            f" Python {sys.version_info.major}.{sys.version_info.minor} and torch {torch.__version__}"
        ) from error
    if hasattr(module, "set_pdl"):
        module.set_pdl(False)
    return module


def describe_error(error: Exception) -> str:
    """Return an error in one line, files without their folders: what it was built from says nothing here."""
    return f"{type(error).__name__}: {FOLDERS.sub('', str(error))[:200]}"


def get_version(module: ModuleType | None) -> str | None:
    """Return what DeepGEMM says of its version, None of no module."""
    return module and str(getattr(module, "__version__", "of unknown version"))


def call_layouts(product: Product, module: ModuleType, layouts: Iterable[str]) -> dict[str, Callable[[], object]]:
    """Return {variant: DeepGEMM's call} of the layouts in which it gives the product; `product.absent` has the others.

    What it leaves in rows of padding is not looked at.
    """
    found = {}
    for layout in layouts:
        name = f"{UPSTREAM} {layout}"
        try:
            call = product.call_op(layout, module)
            product.reset(layout)
            call()
            if product.are_rows_right(layout):
                found[name] = call
            else:
                product.absent[name] = "D is not within the bound"
        except Exception as error:  # another DeepGEMM: the rest is still measured
            product.absent[name] = describe_error(error)
    return found


def group_keys(family, count: int) -> list[list[dict]]:
    """Return the problems of a family in `count` lists; those of one weight, which share kernels, are in one."""

    def get_weight(key: dict) -> tuple:
        return tuple(str(value) for name, value in key.items() if name not in ("m", "tokens", "mean_m", "load"))

    groups = [list(group) for _, group in groupby(sorted(family.read_keys(), key=get_weight), get_weight)]
    parts: list[list[dict]] = [[] for _ in range(count)]
    for group in sorted(groups, key=len, reverse=True):
        min(parts, key=len).extend(group)
    return parts


def compile_part(folder: Path, part: list[tuple[str, dict]]) -> tuple[list[str], int]:
    """Call every layout of some problems once, each (name of a family, key).

    Returns what failed, and how many calls were right.
    """
    torch.manual_seed(0)
    module, device, failures, num_right = load(folder), _C.get_device(), [], 0
    families = {family.name: family for family in list_families()}
    for name, key in part:
        try:
            product = families[name].make_product(key, device)
            num_right += len(call_layouts(product, module, families[name].make_problems(key)))
            failures += [f"{name} {key} {layout}: {why}" for layout, why in product.absent.items()]
            del product
            torch.cuda.empty_cache()
        except Exception as error:  # a problem without room, say: its own run will compile it
            failures.append(f"{name} {key}: {describe_error(error)}")
    return failures, num_right


def list_families() -> list:
    """Return the families that DeepGEMM has ops of. Their modules import this one, through the harness."""
    names = ("dense_fp8", "random_fp8", "dense_bf16", "wgrad_fp8", "m_grouped_contiguous", "m_grouped_masked")
    modules = [import_module(f".{name}", __package__) for name in (*names, "k_grouped", "mqa_logits", "transpose_fp8")]
    return [module.FAMILY for module in modules]


def main(arguments: list[str] | None = None) -> int:
    """Compile what the benchmarks call of DeepGEMM, and print what it lacks."""
    families = {family.name: family for family in list_families()}
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 done, what DeepGEMM lacks is listed; 1 no call had a result; 2 wrong arguments.",
    )
    parser.add_argument("folder", type=Path, help="folder with the __init__.py of an installed DeepGEMM")
    parser.add_argument("--family", action="append", choices=families, help="benchmark (default: every one)")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"processes (default {JOBS})")
    args = parser.parse_args(arguments)
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: below 1; name a number of processes")
    try:
        module = load(args.folder)
    except ValueError as error:
        parser.error(str(error))
    start = time.monotonic()
    parts: list[list] = [[] for _ in range(args.jobs)]
    for name in args.family or families:
        for part, keys in zip(parts, group_keys(families[name], args.jobs), strict=True):
            part.extend((name, key) for key in keys)
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.jobs) as pool:
        found = pool.starmap(compile_part, [(args.folder, part) for part in parts], chunksize=1)
    failures = [failure for part, _ in found for failure in part]
    num_right = sum(count for _, count in found)
    print(*failures, sep="\n")
    seconds = time.monotonic() - start
    print(f"DeepGEMM {get_version(module)}: {num_right} calls right, {len(failures)} without a result, {seconds:.0f} s")
    return 0 if num_right else 1


if __name__ == "__main__":
    sys.exit(main())
