"""The services of the compose file as processes on this machine, and the programs that this takes."""
