"""Make the package's sample of 5,000 digits from the full file: the first of each set, pixels as bytes.

Run: python tests/sources/mnist/make_mnist_sample.py mnist.json.gz gpuloader/sources/mnist/mnist-5k.npz
"""

import sys

import numpy as np

from gpuloader.sources.mnist.digits import read_json

COUNTS = {"train": 4000, "valid": 500, "test": 500}


def main() -> None:
    source, target = sys.argv[1:]
    mnist = read_json(source)
    arrays = {}
    for name, count in COUNTS.items():
        chosen = getattr(mnist, name)
        arrays[f"{name}_images"] = (chosen.images[:count] * 256).astype(np.uint8)
        arrays[f"{name}_labels"] = chosen.labels[:count].astype(np.uint8)
    np.savez_compressed(target, **arrays)


if __name__ == "__main__":
    main()
