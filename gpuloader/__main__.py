"""``python -m gpuloader``: the same as the command ``gpuloader``."""

from gpuloader.cli import main

if __name__ == "__main__":
    main()
