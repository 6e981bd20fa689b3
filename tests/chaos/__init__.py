"""The standing attack: random loaders under random faults, judged by what a user can see.

`python -m tests.chaos` attacks for ten minutes; ``make chaos`` and ``make soak`` call it.

| file | what it does |
|---|---|
| `case.py` | describes one program: its loader, its acts and its faults |
| `drawing.py` | draws it from a seed |
| `sources.py` | make what the loader reads, and the loader |
| `server.py` | serves files, and spoils requests |
| `oracle.py` | compute which batches a plain loop would get, without the package, and compare |
| `troubles.py` | faults that strike inside a dataset or a reader |
| `acts.py` | what a program does with its loader: loop, leave, resume, share, fork, exit |
| `subject.py` | the program that is attacked |
| `attack.py` | run one program as a user of its own, and strike it from outside |
| `judging.py` | judges what a user would have seen |
| `campaign.py` | runs many cases at once, and makes a finding smaller |
| `soak.py` | loads for an hour in one process, and measures its growth |
| `defects.py` | errors that tests put into the package, to show that the attack finds them |
"""
