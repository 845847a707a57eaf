"""One package an engine; the only code that imports it."""
