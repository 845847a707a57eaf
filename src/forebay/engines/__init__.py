"""One package per engine: the only code that imports vLLM or SGLang."""
