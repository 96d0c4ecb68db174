"""The public Python API, whose names ``veilsum.__all__`` lists: objects that a scientist holds in a notebook.

They say nothing to a coordinator and compute nothing themselves; that is done by the modules beside this folder, which the
command line uses as well.
"""
