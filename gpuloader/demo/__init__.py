"""The demonstration: train on MNIST synchronously and asynchronously, and compare the two."""
