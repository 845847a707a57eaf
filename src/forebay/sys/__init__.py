"""The only code that touches the world: files, memory, clocks. Tests inject faults here."""
