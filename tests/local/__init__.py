"""`make deploy-local`: the services of the compose file as processes on this machine, and the programs that this takes.

What runs is what containers would run: the same commands, variables and files, with paths and addresses of this machine. What
a container engine adds (users, read-only roots, networks) is not tried here. For checkouts only, not in the wheel.
"""
