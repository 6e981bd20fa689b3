"""What every room may use: errors, checks of arguments, the operating system, other processes.

In and out: plain values. Anyone may call it; it imports nothing of the package.
"""
