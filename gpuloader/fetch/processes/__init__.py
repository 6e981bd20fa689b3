"""Worker processes, which write samples straight into the loader's slots.

The loader's side is `workers`, and the worker's side is `worker`. Both share `messages` and `shipping`.
`fork_server` is both ends of the process that forks workers.
"""
