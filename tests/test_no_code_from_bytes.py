"""Bytes are data, never code: nothing in the wheel can turn one into the other (T41).

What a file imports and names is followed through `as`, and a banned name is banned as a string too,
so that `getattr` and `sys.modules` are no way around. What is allowed is listed, file by file.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "forebay"
FILES = sorted(SOURCE.rglob("*.py"))
# Modules that load code or objects, with all that is in them.
MODULES = {"builtins", "cloudpickle", "codeop", "dill", "imp", "importlib", "joblib"}
MODULES |= {"jsonpickle", "marshal", "pickle", "_pickle", "pkgutil", "runpy", "shelve", "yaml"}
MODULES |= {"multiprocessing.connection", "torch.hub", "torch.jit", "torch.package"}
# Functions that do, of modules that do other things as well.
FUNCTIONS = {"torch.load", "numpy.load", "numpy.fromregex", "ctypes.pythonapi"}
# Names that do, whatever they are found on.
NAMES = {"__builtins__", "__import__", "__loader__", "compile", "eval", "exec"}
NAMES |= {"exec_module", "import_module", "load_module", "module_from_spec", "unsafe_load"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
STRINGS = MODULES | NAMES | FUNCTIONS | SHELLS
KEYWORDS = {"shell", "allow_pickle"}
ALLOWED = {
    "re.compile",  # a pattern
    "importlib.util.find_spec",  # asks whether a package is installed, and imports nothing
    "importlib.metadata.version",
    "importlib.metadata.PackageNotFoundError",
}
# What one file may use beyond that.
ALLOWED_IN = {"cli/parser.py": {"importlib.import_module"}}  # our own commands, by name


def findings(source: str) -> Iterator[str]:
    """What could turn bytes into code in a file, as line and name."""
    tree = ast.parse(source)
    known = _imported(tree)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        for name in _named(node, known) if id(node) not in inner else ():
            if _is_banned(name):
                yield f"line {getattr(node, 'lineno', 0)}: {name}"


def _imported(tree: ast.AST) -> dict[str, str]:
    """Names that imports bind, with what they stand for."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return known


def _named(node: ast.AST, known: dict[str, str]) -> Iterator[str]:
    """The full names that a node uses."""
    match node:
        case ast.Import():
            # `import importlib.util` alone can do nothing; what is used of it is seen below.
            yield from (alias.name for alias in node.names if not _holds_allowed(alias.name))
        case ast.ImportFrom():
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if not _holds_allowed(name))
        case ast.Name() | ast.Attribute():
            top, dot, rest = ast.unparse(node).partition(".")
            yield known.get(top, top) + dot + rest
        case ast.Constant(value=str(text)) if text in STRINGS:
            yield text
        case ast.keyword(arg=str(name), value=value) if name in KEYWORDS:
            if not (isinstance(value, ast.Constant) and not value.value):
                yield f"{name}="


def _holds_allowed(name: str) -> bool:
    return any(allowed.startswith(f"{name}.") for allowed in ALLOWED)


def _is_banned(name: str) -> bool:
    if name in ALLOWED:
        return False
    parts = name.split(".")
    prefixes = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    whole = prefixes & (MODULES | FUNCTIONS | SHELLS)
    return bool(whole) or bool(NAMES & set(parts)) or name.removesuffix("=") in KEYWORDS


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_t41_no_sink_that_turns_bytes_into_code(path: Path) -> None:
    allowed = ALLOWED_IN.get(str(path.relative_to(SOURCE)), set())
    found = findings(path.read_text())
    assert not [each for each in found if each.partition(": ")[2] not in allowed]


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import importlib; importlib.import_module('x')",
        "import importlib.util; importlib.import_module('x')",
        "import importlib.util as i; i.module_from_spec(s)",
        "from importlib import import_module as load; load(name)",
        "__import__(name)",
        "run = eval; run(text)",
        "exec(text)",
        "compile(text, '', 'exec')",
        "import builtins; builtins.eval(text)",
        "getattr(module, 'import_module')(name)",
        "sys.modules['pickle'].loads(data)",
        "import torch; torch.load(path)",
        "import torch as t; t.load(path, weights_only=True)",
        "from torch import load; load(path)",
        "import yaml; yaml.load(text)",
        "import numpy as np; np.load(path)",
        "import numpy as np; np.lib.format.read_array(file, allow_pickle=flag)",
        "import marshal; marshal.loads(data)",
        "import subprocess; subprocess.run(words, shell=True)",
        "import os; os.system(words)",
        "spec.loader.exec_module(module)",
    ],
)
def test_t41_a_sink_is_found_however_it_is_named(code: str) -> None:
    """T41: importlib.import_module("pickle") passed the test before this one."""
    assert list(findings(code))


def test_t41_what_only_sounds_alike_is_allowed() -> None:
    allowed = """
import importlib.metadata
import importlib.util
import json
import re
import torch
json.loads(data)
re.compile("pickle jar")
importlib.util.find_spec("vllm")
importlib.metadata.version("forebay")
torch.empty(1).load
run(words, shell=False)
"""
    assert not list(findings(allowed))
