"""The only code that does I/O: files, memory, sockets, processes. Tests inject faults here."""
