"""The dashboard, served by the cloud under `/ui`: NiceGUI on the cloud's own app.

    attach.py     puts it on the app of a cloud process
    door.py       who may see it; login.html
    watching.py   runs, read through the archive like the REST API does
    scene.py, graph.py   the topology: what is there, and how it is drawn
    charts.py     pictures (`shared.figures`) as options of ECharts
    forms.py      a spec's JSON schema as fields of a form
    frame.py      what all pages have: navigation, dark mode, refreshing, errors
    pages/        one file a page

Pages call the functions that the REST API's routes call (`Runner`, `Archive`, `Fleet`, `cloud_server.topology`).
"""

from __future__ import annotations
