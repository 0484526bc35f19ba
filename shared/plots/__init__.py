"""Pictures of runs as records: what is to be seen, apart from who draws it.

shapes.py       panels and what they consist of
told.py         what a run tells of itself
courses.py      accuracy, loss, bytes, spread over clients, by round, time or bytes
beside.py       several runs side by side
timeline.py     who did what when in a round
partition.py    who holds how much of which class
patterns.py     pictures that algorithms declare: labels by round, a figure by client
groups.py, sub_networks.py   of algorithms that cluster clients, or train parts of the model
palette.py, scales.py, trees.py   what all who draw need: colours, units, the lines of a dendrogram
"""
