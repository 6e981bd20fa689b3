"""What a field of a batch is: name, shape and dtype; and sequences of varying length as values.

In: declarations and values as users write them. Out: checked specs, converted values. Any room may call it.
"""
