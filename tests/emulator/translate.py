"""Translate CUDA C++ with inline PTX into C++ that calls the emulator.

Every `asm` statement becomes a block with one call for each instruction: the opcode with '_' for '.' and '::' names a
function of core/instructions.hpp, and its arguments are the operands in the order of the text. So the text of the
kernels' wrappers is what is tested, and a wrapper of a known instruction needs nothing here.
"""

import re

_ASM = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LITERAL = re.compile(r"\s*" + _STRING.pattern)
_OPERAND = re.compile(r'"([^"]*)"\s*\(')
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?unsigned char (\w+)\[\];")
_STATIC = re.compile(r"(?:alignas\(\d+\)\s+)?__shared__\s+([\w:]+)\s+(\w+)((?:\[[^\]]*\])+);")
_REGISTER_TYPES = {"pred": "bool", "b32": "unsigned", "u32": "unsigned", "b64": "unsigned long long", "f32": "float"}


def translate(text: str, name: str) -> str:
    """Return the source or header `text`, whose lines reports call `name`, as C++ for the emulator.

    Raises:
        ValueError: inline assembly that is not understood.
    """
    text = _DYNAMIC.sub(r"unsigned char* \1 = ::emulator::dynamic_shared();", text)
    text = _STATIC.sub(_translate_static, text)
    parts, end = [f'#line 1 "{name}"\n'], 0
    for match in _ASM.finditer(text):
        if _is_comment(text, match.start()):
            continue
        close = _find_close(text, match.end())
        body = text[match.end() : close]
        statement = _translate_asm(body)
        # One line, then as many as the statement had, so that the lines after it keep their numbers.
        parts += [text[end : match.start()], statement, "\n" * body.count("\n")]
        end = close + 1
    return "".join([*parts, text[end:]])


def _translate_static(match: re.Match) -> str:
    type_, name, dims = match.groups()
    return (
        f"using Type_{name} = {type_}{dims}; static char key_{name};"
        f" Type_{name}& {name} = *reinterpret_cast<Type_{name}*>"
        f"(::emulator::static_shared(&key_{name}, sizeof(Type_{name})));"
    )


def _is_comment(text: str, at: int) -> bool:
    return "//" in text[text.rfind("\n", 0, at) + 1 : at]


def _find_close(text: str, at: int) -> int:
    """Return where the parenthesis closes that was opened just before `at`."""
    depth, position = 1, at
    while depth:
        string = _STRING.match(text, position)
        if string:
            position = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position - 1


def _translate_asm(body: str) -> str:
    code, position = "", 0
    while match := _LITERAL.match(body, position):
        code += match[1].replace("\\n", "\n").replace("\\t", " ")
        position = match.end()
    operands = _read_operands(body[position:])
    # Registers must not hide variables of the wrapper.
    for name in re.findall(r"\.reg\s+\.\w+\s+(\w+)", code):
        code = re.sub(rf"\b{name}\b", f"ptx_{name}", code)
    statements = [_translate_line(line, operands) for line in _split_lines(code)]
    if any("goto" in statement for statement in statements):  # labels are a function's
        return "[&] { " + " ".join(statements) + " }()"
    return "{ " + " ".join(statements) + " }"


def _read_operands(text: str) -> list[str]:
    """Return the C++ expressions of the operands, outputs first."""
    operands, position = [], 0
    while match := _OPERAND.search(text, position):
        close = _find_close(text, match.end())
        operands.append(f"({text[match.end() : close].strip()})")
        position = close + 1
    return operands


def _split_lines(code: str) -> list[str]:
    """Return instructions, labels and declarations, without the braces of a block."""
    code = code.strip()
    if code.startswith("{"):
        code = code[1 : code.rindex("}")]
    lines = []
    for part in code.replace("\n", " ").split(";"):
        while label := re.match(r"\s*(\w+):(?!:)", part):
            lines.append(f"{label[1]}:")
            part = part[label.end() :]
        lines.append(part.strip())
    return [line for line in lines if line]


def _translate_line(line: str, operands: list[str]) -> str:
    if line.endswith(":"):
        return line
    if line.startswith(".reg"):
        _, type_, names = line.split(None, 2)
        return f"[[maybe_unused]] {_REGISTER_TYPES[type_[1:]]} {names.strip()} = {{}};"
    guard = ""
    if line.startswith("@"):
        condition, line = line[1:].split(None, 1)
        guard = f"if ({condition}) "
    opcode, _, rest = line.partition(" ")
    if opcode == "bra":
        return f"{guard}goto {rest.strip()};"
    if opcode.startswith("wgmma.mma_async"):
        return guard + _translate_wgmma(opcode, rest, operands)
    arguments = [_translate_operand(name, operands) for name in _flatten(rest)]
    function = re.sub(r"\.|::", "_", opcode)
    return f"{guard}::emulator::op::{function}({', '.join(arguments)});"


def _flatten(text: str) -> list[str]:
    return [name.strip() for name in re.split(r"[,\[\]{}]", text.replace("_|", "")) if name.strip()]


def _translate_operand(name: str, operands: list[str]) -> str:
    if name == "_":
        return "::emulator::Sink{}"
    if name.startswith("%%"):
        return f"::emulator::special_{name[2:].replace('.', '_')}()"
    if re.fullmatch(r"%\d+", name):
        return operands[int(name[1:])]
    return name


def _translate_wgmma(opcode: str, rest: str, operands: list[str]) -> str:
    shape = re.search(r"\.m64n(\d+)k(\d+)\.(\w+\.\w+\.\w+)$", opcode)
    if shape is None:
        raise ValueError(f"{opcode}: not understood")
    groups = re.findall(r"\{([^}]*)\}", rest)
    others = [_translate_operand(name, operands) for name in _flatten(re.sub(r"\{[^}]*\}", "", rest))]
    registers = [_translate_operand(name, operands) for name in _flatten(groups[0])]
    if len(groups) == 2:
        values = [_translate_operand(name, operands) for name in _flatten(groups[1])]
        left, a = f"const unsigned left[] = {{{', '.join(values)}}};", "left, 0"
    else:
        left, a = "", f"nullptr, {others.pop(0)}"
    b, accumulates, *immediates = others
    addresses = ", ".join(f"&{register}" for register in registers)
    return (
        f"float* const registers[] = {{{addresses}}}; {left} const int immediates[] = {{{', '.join(immediates)}}};"
        f' ::emulator::wgmma(registers, {shape[1]}, {shape[2]}, "{shape[3]}", {a}, {b}, {accumulates}, immediates,'
        f" {len(immediates)});"
    )
