"""Run by the package of a kernel set, in a process of its own: what it chooses for problems, and its compiled kernels.

Everything but the standard library comes from the `deep_gemm` that is found first, which may be years older or newer
than this file. Hence it uses few names of it: _C.Problem, _C.Config, _C.Device, is_legal, selection.explain,
generator, build.get_cubin and hashing.kernel_hash.

    stdin        {"parent": process ID, "package": its folder, "out": folder, "answer": file, "device": {fields},
                  "processes": count, "hashes": [op kinds] or null,
                  "wanted": [{"problem": {fields}, "config": {fields} or null (the library's choice),
                              "change": {fields}}]}
    answer file  {"hashes": {op kind: kernel hash}, "found": [see `describe`, in the order of `wanted`]}
    <out>        <name>.cu and <name>.cubin of every kernel
"""

import ctypes
import hashlib
import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from deep_gemm import _C, selection
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import build, generator, hashing

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; exit at once where the parent is dead already. As in
    tuner/measure/worker.py, of which the package that runs this need not have one.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Answer the request of stdin."""
    request = json.load(sys.stdin)
    die_with_parent(request["parent"])
    check_package(Path(request["package"]))
    out, fields = Path(request["out"]), request["device"]
    device = _C.Device(**fields | {"compute_capability": tuple(fields["compute_capability"])})
    found = [describe(wanted, device) for wanted in request["wanted"]]
    compile_all(out, found, request["processes"])
    answer = {"hashes": {op: hashing.kernel_hash(op) for op in list_ops(request["hashes"])}, "found": found}
    Path(request["answer"]).write_text(json.dumps(answer))


def check_package(folder: Path) -> None:
    """Exit unless `deep_gemm` is that of `folder`: another one, found in its stead, would answer for itself.

    Of a folder with the native module alone, an installed package may supply the rest.
    """
    for module in (_C, selection):
        found = Path(str(module.__file__)).parent
        if found.resolve() != folder.resolve():
            sys.exit(f"{folder} holds no whole package: {found} was imported instead")


def list_ops(named: list[str] | None) -> list[str]:
    """Return the op kinds to hash; None is all that the set has."""
    return list(OP_KINDS) if named is None else named


def describe(wanted: dict, device) -> dict:
    """Return what the set does with one problem: {"status": "ok" or "illegal", "error", "config": {fields}, "name":
    the config as text, "chosen_by", "problem": {fields}}; compile_all adds the kernel.
    """
    entry = {"status": "ok", "error": None, "problem": wanted["problem"]}
    try:
        problem = _C.Problem(**wanted["problem"])
        chosen_by, config = "given", wanted["config"]
        if config is None:
            choice = selection.explain(problem, device)
            chosen_by, config = choice.source, choice.config.as_dict(with_defaults=False)
        made = _C.Config(**config | wanted["change"])
        reason = _C.legality_reason(problem, made, device)
    except Exception as error:  # a set that lacks an op kind or a field is a finding, too
        return entry | {"status": "illegal", "error": f"{type(error).__name__}: {error}"}
    entry |= {"config": made.as_dict(with_defaults=False), "name": str(made), "chosen_by": chosen_by}
    return entry | ({"status": "illegal", "error": reason} if reason else {})


def compile_all(out: Path, found: list[dict], processes: int) -> None:
    """Compile the kernels of legal entries and add to them what `compile_one` returns."""
    legal = [entry for entry in found if entry["status"] == "ok"]
    fork, parent = multiprocessing.get_context("fork"), (os.getpid(),)
    with ProcessPoolExecutor(max(processes, 1), fork, initializer=die_with_parent, initargs=parent) as pool:
        futures = [pool.submit(compile_one, out, entry["problem"], entry["config"]) for entry in legal]
        for entry, future in zip(legal, futures, strict=True):
            entry.update(take_result(future))


def take_result(future) -> dict:
    """Return what a compiling process found, also where it died."""
    try:
        return future.result()
    except Exception as error:
        return {"status": "compile_error", "error": f"{type(error).__name__}: {str(error)[-1500:]}"}


def compile_one(out: Path, problem_fields: dict, config_fields: dict) -> dict:
    """Compile a kernel and write it with its source: {"kernel": file, "symbol", "registers", "spill_bytes",
    "local_bytes", "shared_bytes", "compiler"}.
    """
    problem, config = _C.Problem(**problem_fields), _C.Config(**config_fields)
    result = build.get_cubin(problem, config)
    name = f"{result.kernel_name}-{hashlib.sha256(result.cubin).hexdigest()[:16]}"
    (out / f"{name}.cu").write_text(generator.generate_source(problem, config))
    (out / f"{name}.cubin").write_bytes(result.cubin)
    return {
        "kernel": f"{name}.cubin",
        "symbol": result.kernel_name,
        "registers": result.registers,
        "spill_bytes": result.spill_bytes,
        "local_bytes": result.local_bytes,
        "shared_bytes": _C.smem_bytes(problem, config),
        "compiler": f"{result.compiler} {result.compiler_version}",
    }


if __name__ == "__main__":
    main()
