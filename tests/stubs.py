"""Write `deep_gemm/_C.pyi`, the types of the native module, from the signatures that the built module holds.

`make stubs` builds the module and writes the file; tests/cpu/project/test_stubs.py compares the committed file with the
module. pybind11 writes a signature into every docstring; the public ops are bound without it: they have a
`__text_signature__` and return None.
"""

import inspect
import re
from pathlib import Path

from deep_gemm import _C

STUB = Path(__file__).parents[1] / "deep_gemm" / "_C.pyi"
WIDTH = 120
#: A type as pybind11 spells it -> the same as a reader expects it.
SPELLINGS = {
    "deep_gemm._C.": "",
    "collections.abc.": "",
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "'": '"',
}
OVERLOAD = re.compile(r"^\d+\. (\w+\(.*\) -> .*)$", re.MULTILINE)
SIGNATURE = re.compile(r"(\w*)\(.*\) -> .*")


def signatures(function) -> list[str]:
    """Return the signatures of a function, `name(parameters) -> type`: several where it is overloaded."""
    first, _, rest = (function.__doc__ or "").partition("\n")
    if rest.startswith("Overloaded function."):
        found = OVERLOAD.findall(rest)
    elif SIGNATURE.fullmatch(first):
        found = [first]
    else:
        found = [f"({(function.__text_signature__ or '(*args, **kwargs)')[1:]} -> None"]
    return [respelled(signature) for signature in found]


def respelled(signature: str) -> str:
    """Return a signature with the types spelled as a reader expects them."""
    for old, new in SPELLINGS.items():
        signature = signature.replace(old, new)
    signature = re.sub(r"\bdict\b(?!\[)", "dict[str, Any]", signature)
    return re.sub(r"-> object$", "-> Any", signature)


def split_parameters(text: str) -> list[str]:
    """Split `a: int, b: tuple[int, int] = (1, 2)` at the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def typed(parameter: str) -> str:
    """Return a parameter as a stub has it: `self` bare, everything else with a type."""
    name, equals, default = parameter.partition("=")
    if re.match(r"self\b", name):
        return "self"
    if ":" in name or not name.isidentifier():
        return parameter
    return f"{name}: Any = {default}" if equals else f"{name}: Any"


def definition(signature: str, name: str, indent: str) -> str:
    """Return the definition of one function: on one line where it fits, else with a line for each parameter."""
    left, returned = signature.rsplit(" -> ", 1)
    parameters = [typed(part) for part in split_parameters(left.partition("(")[2].removesuffix(")"))]
    line = f"{indent}def {name}({', '.join(parameters)}) -> {returned}: ...\n"
    if len(line) <= WIDTH + 1:
        return line
    wrapped = "".join(f"{indent}    {parameter},\n" for parameter in parameters)
    return f"{indent}def {name}(\n{wrapped}{indent}) -> {returned}: ...\n"


def function_text(function, name: str, indent: str = "", decorator: str = "") -> str:
    """Return the definitions of one function or method."""
    found = signatures(function)
    decorator = "overload" if len(found) > 1 else decorator
    head = f"{indent}@{decorator}\n" if decorator else ""
    return "".join(head + definition(signature, name, indent) for signature in found)


def member_text(value: object, name: str) -> str:
    """Return the definition of a property or method of a class; '' for what needs none."""
    if isinstance(value, property):
        returned = signatures(value.fget)[0].rsplit(" -> ", 1)[1]
        return f"    @property\n    def {name}(self) -> {returned}: ...\n"
    if isinstance(value, staticmethod):
        return function_text(value.__func__, name, "    ", "staticmethod")
    return function_text(value, name, "    ") if inspect.isroutine(value) else ""


def class_text(cls: type) -> str:
    """Return the definition of a bound class: what is public, and how it is made where Python can make one."""
    members = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    if SIGNATURE.match(cls.__init__.__doc__ or "") or OVERLOAD.search(cls.__init__.__doc__ or ""):
        members = {"__init__": cls.__init__, **members}
    body = "".join(member_text(value, name) for name, value in members.items()) or "    ...\n"
    return f"class {cls.__name__}:\n{body}"


def constant_text(value: object, name: str) -> str:
    """Return the declaration of a constant of the module."""
    inner = sorted({type(item).__name__ for item in value}) if isinstance(value, tuple) else []
    return f"{name}: tuple[{' | '.join(inner)}, ...]\n" if inner else f"{name}: {type(value).__name__}\n"


def stub_text() -> str:
    """Return the whole stub: constants, classes and functions, each in the order of their names."""
    members = {name: value for name, value in sorted(vars(_C).items()) if not name.startswith("__")}
    classes = [class_text(value) for value in members.values() if isinstance(value, type)]
    functions = {name: value for name, value in members.items() if inspect.isroutine(value)}
    constants = {
        name: value for name, value in members.items() if name not in functions and not isinstance(value, type)
    }
    parts = [
        "".join(constant_text(value, name) for name, value in constants.items()),
        *classes,
        "".join(function_text(value, name) for name, value in functions.items()),
    ]
    return "\n".join([header("".join(parts)), *parts])


def header(text: str) -> str:
    """Return the docstring and the imports of what `text` uses."""
    imports = {
        "collections.abc": ["Callable", "Iterable", "Mapping", "Sequence"],
        "typing": ["Any", "overload"],
    }
    lines = [f'"""{_C.__doc__} Written by `make stubs`: do not edit."""\n\n']
    for module, names in imports.items():
        used = [name for name in names if re.search(rf"\b{name}\b", text)]
        lines += [f"from {module} import {', '.join(used)}\n"] if used else []
    lines += ["\nimport numpy\nimport numpy.typing\n"] if "numpy." in text else []
    return "".join(lines)


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")
