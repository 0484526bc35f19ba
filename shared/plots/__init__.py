"""Pictures of runs as records: what a picture shows, independent of the program that draws it.

picture.py      panels and their parts
history.py      the records of a run from which its pictures are made
curves.py       accuracy, loss, bytes and spread over clients, by round, time or bytes; several runs compared
timeline.py     the visits of a round over simulated time
partition.py    samples of each class at each seat
algorithm_pictures.py   pictures that algorithms declare: labels by round, a figure by client
groups.py, subnetworks.py   for algorithms that cluster clients, or train parts of the model
palette.py, dendrogram_layout.py   colours, and the lines of a dendrogram, for all programs that draw
"""
