"""The results folder of a run, written for people: `runs/<id>/`.

    spec.yaml           the spec, resolved once the run has started
    manifest.json       what the results depend on: seed, digests, versions, CPU
    run.json            the run as the API shows it
    rounds.csv          a line for each round
    devices.ndjson      a line for each visit
    edges.ndjson        a line for each edge and round: its outcome, bytes and seconds
    links.csv           a line for each link, purpose and round
    seats.ndjson        a line for each seat: its edge, profile, samples of each class and faults, as the run began
    model.safetensors   the newest global model
    plots/              pictures, written by `strata show --plots`; no tier draws any

Tables grow by whole lines, and every other file is replaced as a whole, so that a reader never sees half a file. No
tier depends on this folder: the state of a run is in its stores. (A restarted cloud looks up the last round written.)
"""
