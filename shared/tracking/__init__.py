"""Runs for other programs, made from their results folders: TensorBoard, MLflow, flat tables.

scalars.py       the figures of a run by round, its parameters and tags: what all of these are given
tensorboard.py   event files
mlflow.py        a tracking server, over its REST API
"""

from __future__ import annotations
