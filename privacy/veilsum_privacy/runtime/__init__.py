"""What all processes of veilsum share, beside their role: the terminal, the log, the command line's frame."""
