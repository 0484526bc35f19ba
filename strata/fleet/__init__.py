"""The fleet: makes the running agents equal the number that `PUT /topology` wrote.

`loop` compares and decides, `plan` says who stays, `cloud` asks what is wanted. What starts and stops agents are
`processes` (for the launcher) and `containers` (for Compose): the only part that touches either.
"""
