"""The packages that the engine is measured beside, each unpacked from its wheel and run in a process of its own."""
