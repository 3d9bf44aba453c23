"""Choose the config of a problem: exact measured best -> learned selector -> analytic heuristic.

Guarantees: every chosen config is legal on the device; the same artefact, package and environment variables give the
same choices in every process; an artefact is read once per process and GPU model. If it is refused, the heuristic
chooses and one SelectorWarning says so; likewise if it is missing although the package has one for this GPU model. For
other GPU models no artefact is normal. A board with a lower power limit than its model's default has a SKU of its own;
without an artefact for that it uses the model's.
"""

import functools
import os
import threading
import warnings
from typing import NamedTuple

from deep_gemm import _C, environment, selector_files
from deep_gemm.arguments import shorten
from deep_gemm.errors import ArgumentError, DeepGemmError, DeviceError, ModelError, SelectorWarning
from deep_gemm.fields import OP_KINDS
from deep_gemm.selector import Selector
from deep_gemm.text import MAX_MESSAGE, printable


class LoadedSelector(NamedTuple):
    """What a process knows of the artefact for one SKU.

    Where `selector` is None, the heuristic chooses, and `reason` says why. `refusal`: the warning to give, or ''.
    """

    mode: str
    selector: Selector | None
    file: str
    reason: str
    refusal: str = ""


_loaded: dict[str, LoadedSelector] = {}
_lock = threading.Lock()
_has_warned = False


def _reset_after_fork() -> None:
    """A child must not inherit a lock that another thread of the parent held."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


def get_best_config(problem: "_C.Problem", device: "_C.Device | str | None" = None) -> "_C.Config":
    """Return the config that the library runs `problem` with on `device`: a Device, the name of one, such as "h200", or
    None, the current GPU.

    Only the fields of `problem` count: settings of the process (set_num_sms, set_batch_invariant, DG_BATCH_INVARIANT)
    reach a call's problem as its fields num_sms and batch_invariant.

    Raises: ArgumentError for what is no Problem or no device; DeviceError for an unknown name, where there is no GPU,
        and where none of the configs is legal on it.
    """
    return explain(problem, device).config


def get_analytic_config(problem: "_C.Problem", device: "_C.Device | str | None" = None) -> "_C.Config":
    """Return the heuristic's choice for `problem` on `device`, all as for get_best_config; a pure function."""
    check_problem(problem)
    return _C.get_analytic_config(problem, find_device(device))


def explain(problem: "_C.Problem", device: "_C.Device | str | None" = None) -> "_C.Choice":
    """Return the choice for `problem` on `device`, with who chose it and why; all as for get_best_config."""
    device = find_device(device)
    return make_room(problem, choose(problem, device), device)


def check_problem(problem: object) -> None:
    """Raise ArgumentError for what is no Problem: within a choice it would count as a fault of the selector."""
    if not isinstance(problem, _C.Problem):
        raise ArgumentError(
            f"problem = {shorten(problem)}: must be a Problem; pass deep_gemm.Problem('fp8_gemm', 64, 2112, 7168), for"
            " example."
        )


def choose(problem: "_C.Problem", device: "_C.Device") -> "_C.Choice":
    """Return what the selector chooses, or the heuristic. Raises: ArgumentError for what is no Problem."""
    check_problem(problem)
    loaded = load_selector(device.sku)
    if loaded.selector is None:
        return choose_analytic(problem, device, loaded.reason)
    try:
        choice, served = choose_by(loaded.selector, problem, device, loaded.mode)
    except DeviceError:
        raise
    except Exception as error:
        return fall_back(problem, device, loaded, f"{type(error).__name__}: {error}")
    if not _C.is_legal(problem, choice.config, device):
        if served.op not in (problem.op, OP_KINDS[problem.op].sibling):
            return choose_analytic(problem, device, f"{choice.config} does not fit the groups' alignment")
        return fall_back(problem, device, loaded, f"chose the illegal config {choice.config}")
    if choice.source == "analytic" and choice.reason == loaded.selector.find_fault(served.op, kernel_hash(served.op)):
        warn_once(
            f"{loaded.file}: {choice.reason}; measure with `python -m tuner sweep`, then `train` and `export"
            " --install`, or remove the file"
        )
    return choice


def choose_by(
    selector: Selector, problem: "_C.Problem", device: "_C.Device", mode: str = "auto"
) -> tuple["_C.Choice", "_C.Problem"]:
    """Return a selector's choice, which may be illegal for groups with ends, and the problem of list_served that it is
    for. Raises: as Selector.choose.
    """
    for served in list_served(problem, selector):
        choice = selector.choose(served, device, mode, kernel_hash(served.op))
        if choice.source == "exact":
            break
    return choice, served


def explain_tiles(problem: "_C.Problem", device: "_C.Device") -> tuple["_C.Choice", "_C.Config | None"]:
    """Return what a call runs: the choice as explain does, and the second tile of its kernel as find_second_tile."""
    choice = explain(problem, device)
    return choice, find_second_tile(problem, choice.config, device)


def make_room(problem: "_C.Problem", choice: "_C.Choice", device: "_C.Device") -> "_C.Choice":
    """Return the choice without its cluster where that lets a second tile stand beside it, which kernels of groups with
    ends have for few rows: a cluster gains some 2 %, such a tile 15 % (H200).
    """
    config, kind = choice.config, OP_KINDS[problem.op]
    if config.cluster_m * config.cluster_n == 1 or not (kind.has_ends and kind.m_is_shared):
        return choice
    single = _C.Config(**config.as_dict() | {"cluster_m": 1, "cluster_n": 1})
    if not _C.is_legal(problem, single, device) or is_banned(problem, single, device):
        return choice
    if find_second_tile(problem, single, device) is None:
        return choice
    return _C.Choice(single, choice.source, f"{choice.reason}; a second tile stands beside it, not a cluster")


def find_second_tile(problem: "_C.Problem", config: "_C.Config", device: "_C.Device") -> "_C.Config | None":
    """Return the second tile of a kernel of `config`, chosen for `problem`, which takes one of both by the rows that
    its groups have; None for most problems, where the selector has it in quarantine, and with DG_SECOND_TILE=0.
    """
    if not environment.is_enabled("DG_SECOND_TILE", default=True):
        return None
    second = _C.find_second_tile(problem, config, device)
    return None if second is None or is_banned(problem, second, device) else second


def is_banned(problem: "_C.Problem", config: "_C.Config", device: "_C.Device") -> bool:
    """Return whether the selector has a config in quarantine for a problem."""
    selector = load_selector(device.sku).selector
    return selector is not None and selector.is_banned(find_recorded(problem, selector), config)


def find_recorded(problem: "_C.Problem", selector: Selector) -> "_C.Problem":
    """Return the problem whose records choose for `problem` where no exact entry does: the last of list_served."""
    return list_served(problem, selector)[-1]


def list_served(problem: "_C.Problem", selector: Selector) -> list["_C.Problem"]:
    """Return the problems whose records choose for `problem`, by an exact entry of the first that has one, else by what
    is chosen for the last: itself, or that of its op kind's sibling as long as the artefact knows that one alone. Both
    have the same configs, and a kernel of one runs as fast as that of the other. Groups with ends that fill a part of
    their alignment are chosen for as masked ones of as many rows, whose tiles may not fit it; those that fill it, as if
    nothing were said.
    """
    op = find_recorded_op(problem.op, selector)
    own = [problem] if op == problem.op else []
    if own and (OP_KINDS[op].has_room or not problem.expected_m):
        return own
    if twin := _C.find_masked_twin(problem):
        return [*own, twin]
    fields = problem.as_dict() | {"op": op}
    fields.pop("expected_m", None)  # no sibling has it
    return [*own, _C.Problem(**fields)]


def find_recorded_op(op: str, selector: Selector) -> str:
    """Return the op kind whose records choose for `op`."""
    sibling, known = OP_KINDS[op].sibling, selector.metadata["ops"]
    return sibling if sibling in known and op not in known else op


def list_recorded_ops(op: str, selector: Selector) -> list[str]:
    """Return the op kinds whose records choose for problems of `op`: one, and for groups of rows with ends also the
    masked ones, where the artefact knows them.
    """
    found, kind = find_recorded_op(op, selector), OP_KINDS[op]
    is_joined = found != op and kind.m_is_shared
    masked = [name for name, other in OP_KINDS.items() if is_joined and other.has_room and other.is_fp8 == kind.is_fp8]
    return [found, *(name for name in masked if name in selector.metadata["ops"])]


def find_device(device: "_C.Device | str | None") -> "_C.Device":
    """Return `device`, the one of that name, or the current GPU for None.

    Raises: ArgumentError for anything else; DeviceError for an unknown name, and where there is no GPU.
    """
    if device is None:
        return current_device()
    named = _C.Device.known(device) if isinstance(device, str) else device
    if not isinstance(named, _C.Device):
        raise ArgumentError(
            f"device = {shorten(device)}: must be a Device, its name or None; pass 'h200', for example."
        )
    return named


def current_device() -> "_C.Device":
    """Return the current GPU.

    Raises: DeviceError where there is none. The remedy is to pass a device: a choice involves no tensors.
    """
    try:
        return _C.get_device()
    except DeviceError as error:
        fault = str(error).partition("; ")[0]  # the rest is the remedy for a launch: CPU tensors
        raise DeviceError(
            f"device = None: means the current GPU, but {fault}; pass device=deep_gemm.Device.known('h200') or another"
            " model's."
        ) from error


def get_selector(device: "_C.Device") -> Selector | None:
    """Return the selector that this process uses on `device`, or None where the heuristic answers."""
    return load_selector(device.sku).selector


def forget_selectors() -> None:
    """Forget every loaded artefact; the next choice reads the environment variables again.

    For tests and tools, not for a process that serves.
    """
    global _has_warned
    with _lock:
        _loaded.clear()
        _has_warned = False


def choose_analytic(problem: "_C.Problem", device: "_C.Device", reason: str) -> "_C.Choice":
    """Return the heuristic's choice with `reason`."""
    return _C.Choice(_C.get_analytic_config(problem, device), "analytic", reason)


def fall_back(problem: "_C.Problem", device: "_C.Device", loaded: LoadedSelector, fault: str) -> "_C.Choice":
    """Warn of a selector that failed on `problem` and return the heuristic's choice."""
    warn_once(f"{loaded.file}: {fault}")
    return choose_analytic(problem, device, f"the selector failed: {fault}")


def load_selector(sku: str) -> LoadedSelector:
    """Return what is loaded for `sku`, reading its artefact the first time."""
    loaded = _loaded.get(sku)
    if loaded is None:
        with _lock:
            loaded = _loaded.get(sku) or _loaded.setdefault(sku, find_selector(sku))
        if loaded.refusal:  # after it was remembered: where warnings are errors, the next call must not read again
            warn_once(loaded.refusal)
    return loaded


def find_selector(sku: str) -> LoadedSelector:
    """Find, read and check the artefact for `sku`, as DG_SELECTOR and DG_MODEL_DIR say."""
    mode, path = selector_files.selection_mode()
    if mode == "analytic":
        return LoadedSelector(mode, None, "", "DG_SELECTOR=analytic")
    try:
        found = selector_files.read_selector_file(sku, path)
        if found is None:
            return LoadedSelector(mode, None, "", f"no selector for {sku}", refusal=selector_files.explain_missing(sku))
        return LoadedSelector(mode, read_selector(*found, sku), found[0], "")
    except ModelError as error:
        return LoadedSelector(mode, None, str(path or ""), f"the selector was refused: {error}", refusal=str(error))


def read_selector(file: str, content: bytes, sku: str) -> Selector:
    """Return the selector in `content`. Raises: ModelError naming `file` where it is malformed or for another SKU."""
    try:
        selector = Selector(content)
    except DeepGemmError as error:
        raise ModelError(f"{file}: {error}") from error
    if selector.sku not in selector_files.list_skus(sku):
        raise ModelError(f"{file}: is for {selector.sku}, not {sku}; export one for this GPU model or remove the file")
    return selector


def warn_once(message: str) -> None:
    """Warn of an unusable selector, once per process."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            f"{printable(message, MAX_MESSAGE)} (the analytic heuristic chooses instead)", SelectorWarning, stacklevel=4
        )


@functools.cache
def kernel_hash(op: str) -> str:
    """Return the identity of the kernels of `op` in this installation."""
    from deep_gemm.jit import hashing

    return hashing.kernel_hash(op)
