"""The committed types of the native module are those of the built one."""

import ast

from deep_gemm import _C
from tests import stubs


def test_committed_stub_is_that_of_the_built_module():
    assert stubs.STUB.read_text(encoding="utf-8") == stubs.stub_text(), "run `make stubs` and commit deep_gemm/_C.pyi"


def test_every_public_name_has_a_type():
    tree = ast.parse(stubs.stub_text())
    functions = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    constants = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert functions | constants == {name for name in vars(_C) if not name.startswith("__")}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    members = {node.name for node in classes["Problem"].body}
    assert {"m", "op", "recipe", "from_json", "as_dict"} <= members
