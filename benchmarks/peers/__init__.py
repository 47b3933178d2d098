"""A round here and in other simulators: one partition, one model, the same batches' size.

`problem` writes what all of them read, `environments` gives each peer a Python environment of its
own, `contest` has them take turns, `table` tells. What a peer is made to do is in `drivers/`: small
scripts that run in its environment and know nothing of ours.
"""
