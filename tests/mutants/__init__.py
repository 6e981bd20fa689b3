"""Mutation testing: change one thing in a module, and see whether the tests that belong to it notice."""
