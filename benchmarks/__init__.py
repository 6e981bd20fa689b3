"""Figures against a bare floor and against peers."""
