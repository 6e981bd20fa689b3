"""The objects that a user holds: loaders over datasets and readers, the feeder, and their states.

In: what the user passes. Out: steps. Only users and the rooms above call it.
"""
