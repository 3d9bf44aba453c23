"""Typed errors of deep_gemm. Every message says value, rule and remedy, and is raised before any side effect."""


class DeepGemmError(Exception):
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


class DeviceError(DeepGemmError, RuntimeError):
    """A missing, unsupported or mixed device."""


class ArgumentError(DeepGemmError, TypeError):
    """An argument of the wrong type, or an option that this op does not have."""


class CompileError(DeepGemmError, RuntimeError):
    """A kernel that could not be compiled; carries the end of the compiler's log."""


class LaunchError(DeepGemmError, RuntimeError):
    """The driver refused to load or launch a kernel."""


class ModelError(DeepGemmError, ValueError):
    """A selector artefact that is malformed or not meant for this package; it is never used in part."""


class CacheWarning(UserWarning):
    """The disk cache of compiled kernels is not usable; kernels are kept in memory only."""


class SelectorWarning(UserWarning):
    """A selector artefact was refused; the analytic heuristic chooses instead."""
