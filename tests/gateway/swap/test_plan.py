"""How engines rest by the host's memory, and what of the file is refused."""

from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import main
from forebay.errors import SettingsError
from forebay.gateway.config import EngineSetting, GpuSetting, parse_config
from forebay.gateway.swap.plan import HostMemory, Rest, host_memory, rests

GIB = 1 << 30
ENGINE = {"name": "a", "model": "m", "url": "http://127.0.0.1:1", "gpu": "g", "swap": "sleep"}
OWNED = {**ENGINE, "command": ["vllm", "serve", "x"]}
FILE = {"state_dir": "/tmp/x", "gpu": [{"name": "g"}]}


def owned(name: str, weights_gib: int, **more: Any) -> EngineSetting:
    return EngineSetting(
        name, "m", "http://127.0.0.1:1", gpu="g", command=("x",), weights=weights_gib * GIB, **more
    )


def test_engines_sleep_in_host_memory_as_long_as_it_lasts() -> None:
    gpu = GpuSetting("g", host_memory=64 * GIB, slab=24 * GIB)
    engines = [
        owned("a", 16),
        owned("b", 32),
        owned("c", 24),
        owned("d", 1, swap="stop"),
        EngineSetting("other", "m", "http://127.0.0.1:2", gpu="h"),
    ]
    found = rests(gpu, engines)
    assert found == {"a": Rest.LEVEL_1, "b": Rest.LEVEL_2, "c": Rest.LEVEL_1, "d": Rest.STOP}
    assert host_memory(gpu, engines) == HostMemory(24 * GIB, 40 * GIB, 64 * GIB)
    assert set(rests(GpuSetting("g"), engines[:3]).values()) == {Rest.LEVEL_1}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"engine": [{**ENGINE, "gpu": "h"}]}, "swap need a gpu"),
        ({"engine": [{**ENGINE, "gpu": "h", "swap": ""}]}, "no [[gpu]] h"),
        ({"engine": [{**ENGINE, "swap": "x"}]}, "swap is sleep or stop"),
        ({"engine": [{**ENGINE, "swap": ""}]}, 'say swap = "sleep"'),
        ({"engine": [{**ENGINE, "swap": "stop"}]}, "has no command"),
        ({"engine": [{**ENGINE, "url": "http://10.0.0.1:1"}]}, "for this host alone"),
        ({"engine": [{**ENGINE, "url": "http://localhost:1"}]}, "for this host alone"),
        ({"engine": [{**OWNED, "url": "http://127.0.0.1"}]}, "for this host alone"),
        ({"engine": [{**OWNED, "command": "vllm"}]}, "command must be a list of words"),
        ({"engine": [{**OWNED, "command": ["vllm", ""]}]}, "command is a list of words"),
        ({"engine": [OWNED], "state_dir": ""}, "name a state_dir"),
        ({"engine": [ENGINE], "gpu": [{"name": "g"}, {"name": "g"}]}, "gpu g is listed twice"),
        ({"engine": [ENGINE], "gpu": [{"name": "g"}, {"name": "h"}]}, "no engine names it"),
        ({"engine": [ENGINE], "gpu": [{"name": "g", "patience_s": 600}]}, "less than queue_s"),
        ({"engine": [ENGINE], "gpu": [{"name": "g", "slab": "1GiB"}]}, "slab is a part"),
        ({"engine": [ENGINE], "gpu": [{"name": "g", "host_memory": "1GiB"}]}, "say its weights"),
        (
            {
                "engine": [{**ENGINE, "weights": "2GiB"}],
                "gpu": [{"name": "g", "host_memory": "1GiB"}],
            },
            "do not fit into host_memory",
        ),
        (
            {
                "engine": [ENGINE, {**ENGINE, "name": "b", "url": "http://127.0.0.1:2"}],
                "gpu": [{"name": "g", "patience_s": 9}],
            },
            "patience_s must be 10 or more",
        ),
    ],
)
def test_a_slip_is_one_sentence(table: "dict[str, object]", words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_config({**FILE, **table})
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


def test_without_gpu_tables_gpu_is_a_word_for_people() -> None:
    found = parse_config({"engine": [{**ENGINE, "swap": ""}]})
    assert found.engines[0].gpu == "g"
    assert not found.gpus


def test_check_says_how_engines_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(
        'state_dir = "state"\n[[gpu]]\nname = "g"\nhost_memory = "8GiB"\nslab = "4GiB"\n'
        '[[engine]]\nname = "a"\nmodel = "m"\nurl = "http://127.0.0.1:1"\ngpu = "g"\n'
        'command = ["vllm", "serve", "x"]\nweights = "3GiB"\n'
        '[[engine]]\nname = "b"\nmodel = "n"\nurl = "http://127.0.0.1:2"\ngpu = "g"\n'
        'command = ["vllm", "serve", "y"]\nweights = "2GiB"\n'
    )
    assert main(["gateway", "check", str(path)]) == 0
    line = "g: one awake of a (level 1), b (level 2); 7.0 GiB of the host's memory, of 8.0 GiB"
    assert line in capsys.readouterr().out
    assert not (tmp_path / "state").exists()
