"""A real vLLM engine in a process of its own, driven by lines of JSON.

Run with the environment that has vLLM: `python engine.py '{"model": …, "pool": {…} | null, …}'`.
Each line on standard input is a list of {"tokens": […], "salt": …}; each line on standard output
answers with what was generated and how much of the prompt was not computed.
"""

import json
import os
import sys
from typing import Any

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
CONNECTOR = {
    "kv_connector": "ForebayConnector",
    "kv_connector_module_path": "forebay.engines.vllm.connector",
    "kv_role": "kv_both",
}


def main() -> None:
    wanted = json.loads(sys.argv[1])
    os.environ.update(QUIET)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints as it likes; our answers have a line of their own

    from vllm import LLM, SamplingParams

    extra: dict[str, Any] = dict(wanted.get("engine", {}))
    if wanted["pool"] is not None:
        extra["kv_transfer_config"] = {**CONNECTOR, "kv_connector_extra_config": wanted["pool"]}
    engine = LLM(
        model=wanted["model"],
        dtype=wanted.get("dtype", "float32"),
        kv_cache_memory_bytes=wanted["kv_bytes"],
        max_model_len=2048,
        max_num_seqs=4,
        enforce_eager=True,
        skip_tokenizer_init=True,
        **extra,
    )
    greedy = SamplingParams(temperature=0, max_tokens=wanted["answer"], detokenize=False)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        prompts = []
        for each in json.loads(line):
            salt = {"cache_salt": each["salt"]} if each.get("salt") else {}
            prompts.append({"prompt_token_ids": each["tokens"], **salt})
        results = engine.generate(prompts, greedy, use_tqdm=False)
        told = [
            {"tokens": list(r.outputs[0].token_ids), "cached": r.num_cached_tokens or 0}
            for r in results
        ]
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
