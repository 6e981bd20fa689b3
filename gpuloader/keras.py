"""A `DataLoader` that Keras 3 takes as data: ``model.fit(loader)``, and also in evaluate and predict.

Replace ``from gpuloader import DataLoader`` with ``from gpuloader.keras import DataLoader``. Keras is
imported when the first loader is made.
"""

if __name__ == "keras":
    from gpuloader.system.imports import step_aside

    step_aside(__name__, __file__)
else:
    from gpuloader.api.keras_loader import DataLoader

    __all__ = ["DataLoader"]
