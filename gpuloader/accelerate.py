"""Tell Hugging Face's Accelerate where a loader is in its epoch.

A loader with ``shard='auto'`` divides the data among Accelerate's processes itself, and
``accelerator.prepare`` returns it as it is. `prepare` registers it as well, as Accelerate does with its own
loaders.
"""

if __name__ == "accelerate":
    from gpuloader.system.imports import step_aside

    step_aside(__name__, __file__)
else:
    from gpuloader.api.prepared_loader import PreparedLoader, prepare, skip_first_batches

    __all__ = ["PreparedLoader", "prepare", "skip_first_batches"]
