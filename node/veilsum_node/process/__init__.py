"""The frame of a process: commands and their errors, the console, hardening at start, a clock that only counts seconds."""
