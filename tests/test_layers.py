"""Imports point down only; each layer may use the ones below it and nothing else of Forebay."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "forebay"

# Lower numbers are lower layers. Siblings of one layer do not import each other, unless listed.
LAYERS = {
    "barrier": 0,
    "decisions": 0,
    "documents": 0,
    "errors": 0,
    "files": 0,
    "quantity": 0,
    "report": 0,
    "settings": 0,
    "terms": 0,
    "tenants": 0,
    "urls": 0,
    "sys": 1,
    "record": 2,
    "identity": 2,
    "tiers": 3,
    "metrics": 4,
    "pool": 5,
    "engines": 6,
    "sim": 7,
    "plan": 7,
    "bench": 7,
    "observe": 7,
    "gateway": 7,
    "cli": 8,
    "testing": 9,
}
SIBLINGS = {("quantity", "errors"), ("settings", "errors"), ("settings", "quantity")}
SIBLINGS |= {("files", "errors"), ("settings", "files")}
SIBLINGS |= {("tenants", "errors"), ("tenants", "quantity"), ("settings", "tenants")}
SIBLINGS |= {("urls", "errors"), ("urls", "quantity"), ("settings", "urls")}
SIBLINGS |= {("terms", "errors"), ("terms", "quantity"), ("urls", "terms")}
SIBLINGS |= {("identity", "record"), ("plan", "sim"), ("bench", "plan"), ("bench", "sim")}
SIBLINGS |= {("observe", "plan"), ("observe", "bench"), ("gateway", "observe")}
# What only some layers may import from outside.
ONLY_IN = {
    "torch": {"engines"},
    "vllm": {"engines"},
    "sglang": {"engines"},
    "mooncake": {"tiers"},
    "obstore": {"tiers"},
    "cryptography": {"record"},
    "aiohttp": {"bench", "gateway"},
    "uvloop": {"gateway"},
    "hypothesis": {"testing"},
    "pytest": {"testing"},
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "forebay":
                found |= {f"forebay.{alias.name}" for alias in node.names}
    return found


def name_of(path: Path) -> str:
    """A module as it is imported."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(path: Path) -> set[str]:
    """The modules of ours that a file names in its imports, those for types alone included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {str(node.module)}
    return found & MODULES.keys()


def reached_from(name: str, imported: dict[str, set[str]]) -> set[str]:
    """The modules that a module imports, those that they import, and so on."""
    reached: set[str] = set()
    ahead = set(imported[name])
    while ahead:
        reached |= ahead
        ahead = set().union(*(imported[each] for each in ahead)) - reached
    return reached


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(path for path in SOURCE.rglob("*.py") if layer_of(path) != "__init__")
MODULES = {name_of(path): path for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    layer = layer_of(path)
    assert layer in LAYERS, f"{layer} is in no layer: place it in tests/test_layers.py"
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top in ONLY_IN:
            assert layer in ONLY_IN[top], f"{path} imports {name}"
        target = rest.partition(".")[0]
        if top != "forebay" or target in {"", "__version__", layer}:
            continue
        below = LAYERS[target] < LAYERS[layer] or (layer, target) in SIBLINGS
        assert below, f"{path} imports {name}, which is not below it"


@pytest.mark.parametrize("tier", ["dram", "disk", "remote"])
def test_tiers_do_not_know_each_other(tier: str) -> None:
    others = {"dram", "disk", "remote"} - {tier}
    for path in (SOURCE / "tiers" / tier).rglob("*.py"):
        used = {name.removeprefix("forebay.tiers.").partition(".")[0] for name in imports_of(path)}
        assert not used & others, path


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_is_imported_by_its_own_package_alone(engine: str) -> None:
    users = {
        path.relative_to(SOURCE).parts[:2]
        for path in FILES
        if any(name.partition(".")[0] == engine for name in imports_of(path))
    }
    # A plugin of vLLM's is told of before the package of the engine is wanted.
    assert users <= {("engines", engine), ("engines", "start")}


def test_the_gateway_has_one_seam_to_its_http_library() -> None:
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "gateway").rglob("*.py")
        if any(name.partition(".")[0] == "aiohttp" for name in imports_of(path))
    }
    # The service only asks whether it is installed.
    assert users == {"gateway/http/client.py", "gateway/http/server.py", "gateway/service.py"}


def test_no_import_circle() -> None:
    """Modules from which a way leads back to them; `from a import b` names the module b alone."""
    imported = {name: modules_of(path) for name, path in MODULES.items()}
    assert not {name for name in MODULES if name in reached_from(name, imported)}
