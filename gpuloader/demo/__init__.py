"""The main job: train on MNIST twice, synchronously and asynchronously, and show the difference."""
