"""``python -m gpuloader``: the same as ``gpuloader``."""

from gpuloader.cli import main

if __name__ == "__main__":
    main()
