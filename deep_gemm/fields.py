"""The native descriptions of problems, configs and op kinds, by name.

A field is described once, in the native module: name, type, default, range or words, meaning and role. Everything that
lists fields reads these descriptions. The op kind of a problem is no field.
"""

from deep_gemm import _C

#: In the order of `Problem.as_dict()`.
PROBLEM_FIELDS = {field.name: field for field in _C.PROBLEM_FIELDS}
#: In the order of `Config.as_dict()`.
CONFIG_FIELDS = {field.name: field for field in _C.CONFIG_FIELDS}
OP_KINDS = {kind.name: kind for kind in _C.OP_KINDS}
