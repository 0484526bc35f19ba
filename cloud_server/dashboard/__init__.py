"""The dashboard: NiceGUI pages that the cloud serves under `/ui`.

    mount.py            adds the dashboard to the cloud's FastAPI app
    login.py            access control, with login.html
    layout.py           shared by all pages: navigation, dark mode, refreshing, error messages
    offline_notice.py   the notice on an open page while the cloud does not answer
    run_views.py        runs, cached for all viewers
    topology_nodes.py   cloud, edges and devices as nodes; topology_grid.py and topology_grid.js draw them
    node_dialogs.py     the dialogs of edges and devices
    charts.py           pictures (`shared.plots`) as ECharts options
    forms.py            the spec's JSON schema as form fields
    pages/              one file per page

Pages call the same functions as the REST API (`RunManager`, `RunRepository`, `Fleet`, `cloud_server.node_views`).
"""

from __future__ import annotations
