"""The objects a user holds: loaders over datasets and readers, the feeder, and their states.

In: datasets or readers, and the user's options.
Out: steps, each holding one batch per place.
Callers: users, and the packages above (`fluid`, `demo`, `doctor`).
"""
