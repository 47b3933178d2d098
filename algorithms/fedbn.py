"""FedBN (Li et al., ICLR 2021): FedAvg of everything but batch norm, which stays on the client."""

from __future__ import annotations

from itertools import chain

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_bench.engine import Algorithm
from pfl_bench.models import Model


class FedBN(Algorithm):
    title = "FedBN"
    summary = "FedAvg in which each client keeps the parameters of its batch-norm layers."
    citation = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, "
        "ICLR 2021"
    )
    scored_model = "the global model as received with the client's own batch norm"
    personal = ("norms",)

    def impossible(self) -> str | None:
        is_local = self.task.config.bn_stats == "local"
        return None if is_local else "FedBN keeps batch-norm statistics on the clients"

    def parts(self, model: Model) -> dict[str, nn.Module]:
        layers = chain(model.extractor.modules(), model.head.modules())
        norms = [p for m in layers if isinstance(m, _BatchNorm) for p in m.parameters()]
        return {**super().parts(model), "norms": nn.ParameterList(norms)}
