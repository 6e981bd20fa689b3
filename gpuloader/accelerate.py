"""Tell Hugging Face's Accelerate where a loader is in its epoch.

A loader with ``shard='auto'`` divides the data among Accelerate's processes itself. `prepare` registers it,
as Accelerate does with its own loaders. A loader of `gpuloader.torch` with a seed needs only
``accelerator.prepare``, which returns it as it is.
"""

if __name__ == "accelerate":
    from gpuloader.system.imports import step_aside

    step_aside(__name__, __file__)
else:
    from gpuloader.api.prepared_loader import PreparedLoader, prepare, skip_first_batches

    __all__ = ["PreparedLoader", "prepare", "skip_first_batches"]
