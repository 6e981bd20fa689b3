"""Check whether a machine has what a loader needs.

`facts` reads the machine, `trials` runs what may hang or crash in other processes, `findings` judges both.
"""
