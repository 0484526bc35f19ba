"""The results folder of a run, for people: `runs/<id>/`.

    spec.yaml           the spec, resolved once the run has started
    manifest.json       what the figures rest on: seed, digests, versions, CPU
    run.json            the run as the API shows it
    rounds.csv          a line for each round
    devices.ndjson      a line for each visit
    edges.ndjson        a line for each edge and round: what became of it, its bytes and seconds
    links.csv           a line for each link, purpose and round
    seats.ndjson        a line for each seat: its home, profile and samples of each class, as the run began
    model.safetensors   the newest global model
    plots/              pictures of the run as it was when `strata show --plots` last drew them; no tier draws any

Tables grow by whole lines; every other file is replaced as a whole, so a reader never sees half of one. No tier
needs what is here: the state of a run lives in its stores. (A cloud that returns looks up the last round written.)
"""
