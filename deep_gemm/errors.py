"""Typed errors of deep_gemm. Every message says value, rule and remedy, and is raised before any side effect.

Each derives from the built-in that it resembles, and all of them from RuntimeError, which callers of DeepGEMM catch.
"""


class DeepGemmError(RuntimeError):
    """Base of every error that deep_gemm raises on purpose."""


class ProblemError(DeepGemmError, ValueError):
    """A problem or config description that cannot exist (negative sizes, unknown op, malformed JSON)."""


class ConfigError(DeepGemmError, ValueError):
    """A config that is not legal for the problem and device."""


class DtypeError(DeepGemmError, TypeError):
    """An operand of the wrong dtype."""


class ShapeError(DeepGemmError, ValueError):
    """An operand of the wrong rank or size."""


class LayoutError(DeepGemmError, ValueError):
    """An operand whose strides, alignment or overlap the kernels cannot take."""


class DeviceError(DeepGemmError):
    """A missing, unsupported or mixed device."""


class ArgumentError(DeepGemmError, TypeError):
    """An argument of the wrong type, or an option that this op does not have."""


class CompileError(DeepGemmError):
    """A kernel that could not be compiled.

    Attributes: `argv` (the compiler's command line), `status` (exit status; negative: a signal; None: it did not end by
        itself), `log` (the last 4 KiB of the compiler's output), `source_path` (where the source was kept, or None).
    """

    def __init__(
        self,
        message: str,
        *,
        argv: tuple[str, ...] = (),
        status: int | None = None,
        log: str = "",
        source_path: str | None = None,
    ):
        super().__init__(message)
        self.argv, self.status, self.log, self.source_path = tuple(argv), status, log, source_path


class CacheError(DeepGemmError, OSError):
    """The disk cache of compiled kernels is not usable, where what was asked for is to fill it."""


class LaunchError(DeepGemmError):
    """The driver refused to load or launch a kernel."""


class ModelError(DeepGemmError, ValueError):
    """A selector artefact that is malformed or not meant for this package; it is never used in part."""


class CacheWarning(UserWarning):
    """The disk cache of compiled kernels is not usable; kernels are kept in memory only."""


class WarmUpWarning(UserWarning):
    """A warm-up could not compile or load every kernel; its report holds the errors."""


class SelectorWarning(UserWarning):
    """A selector artefact was refused; the analytic heuristic chooses instead."""
