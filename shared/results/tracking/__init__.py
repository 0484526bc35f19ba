"""Runs for other programs, TensorBoard, MLflow, flat tables.

scalars.py       the figures of a run by round, its parameters and tags: what all of these are given
tensorboard.py   event files
mlflow.py        a tracking server, over its REST API
checks.py        whether both can be told anything here
notes.py         how far a run has been brought to them: `tracking.json`
live.py          both of these told of a run as it goes
"""
