"""Runs in TensorBoard and MLflow: exported after the run, or tracked while it goes.

scalars.py       the figures of a run by round, its parameters and tags
tensorboard.py   writes event files
mlflow.py        client of a tracking server, over its REST API
tracker_notes.py which trackers have what of a run: `tracking.json`
live.py          both trackers, each given only what is new
"""
