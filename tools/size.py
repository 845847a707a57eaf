"""Print the size of the package: lines a layer, the longest file, the longest function."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "forebay"


def main() -> None:
    layers: dict[str, int] = {}
    longest_file = longest_function = (0, "")
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        lines = text.count("\n")
        name = str(path.relative_to(SOURCE))
        layer = name.split("/", maxsplit=1)[0] if "/" in name else "(top)"
        layers[layer] = layers.get(layer, 0) + lines
        longest_file = max(longest_file, (lines, name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                longest_function = max(longest_function, (size, f"{name}:{node.name}"))
    each = " ".join(f"{layer} {lines}" for layer, lines in sorted(layers.items()))
    print(f"size: {sum(layers.values())} lines ({each})")
    print(f"size: longest file {longest_file}, longest function {longest_function}")


if __name__ == "__main__":
    main()
