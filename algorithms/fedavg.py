"""FedAvg (McMahan et al., AISTATS 2017): one global model, averaged by training samples.

The engine's defaults are this method: the whole model is shared, trained locally by SGD on
cross-entropy, and averaged; the global model is scored on every client.
"""

from __future__ import annotations

from pfl_bench.engine import Algorithm


class FedAvg(Algorithm):
    title = "FedAvg"
    group = "paper"
    summary = (
        "Clients train the global model on their own data; the server averages the results, "
        "weighted by the number of training samples."
    )
    citation = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
        "Data, AISTATS 2017"
    )
