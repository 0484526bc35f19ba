"""Training of many devices at once: their parameters, buffers and batches are stacked, a place for each device.

A device's bits depend on neither its place nor its neighbours. For that, all shapes follow from the width of the stack
and the padded number of rows of a batch, and each place begins at a multiple of 64 bytes: on the CPU, matrix products
give other bits on other alignments, and beyond that no others (measured, and checked by tests on each machine).
"""
