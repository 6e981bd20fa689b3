"""The main job: train on MNIST, synchronously and asynchronously, and show the difference."""
