"""FedJAX: its federated averaging, compiled by XLA, clients one after the other."""

from __future__ import annotations

import fedjax
import jax
import jax.numpy as jnp
from common import problem, serve
from fedjax.algorithms import fed_avg


def logits(model, batch):
    """The paper's CNN, channels last as JAX prefers it on a processor."""
    x = batch["x"]
    for layer in ("extractor.conv1", "extractor.conv2"):
        weight = model[f"{layer}.weight"]
        dimensions = jax.lax.conv_dimension_numbers(x.shape, weight.shape, ("NHWC", "HWIO", "NHWC"))
        x = jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=dimensions)
        x = jax.nn.relu(x + model[f"{layer}.bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    x = jax.nn.relu(x @ model["extractor.fc.weight"] + model["extractor.fc.bias"])
    return x @ model["head.weight"] + model["head.bias"]


def loss(model, batch, rng):
    chances = jax.nn.log_softmax(logits(model, batch))
    return -jnp.mean(jnp.take_along_axis(chances, batch["y"][:, None], 1))


def main() -> None:
    given = problem()
    images = given.x.transpose(0, 2, 3, 1)
    model = {}
    for name, value in given.model.items():
        moved = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[value.ndim]
        model[name] = jnp.asarray(value.transpose(moved))
    clients = [
        (
            str(k),
            fedjax.ClientDataset({"x": images[rows], "y": given.y[rows]}),
            jax.random.PRNGKey(k),
        )
        for k, rows in enumerate(given.train)
    ]
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(given.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=given.batch_size, num_epochs=1, drop_remainder=True
        ),
    )
    state = algorithm.init(model)
    right = jax.jit(lambda model, x, y: jnp.sum(jnp.argmax(logits(model, {"x": x}), 1) == y))
    total = sum(map(len, given.test))

    def lap() -> float:
        nonlocal state
        state, _ = algorithm.apply(state, clients)
        found = 0
        for rows in given.test:
            for start in range(0, len(rows), 50):
                some = rows[start : start + 50]
                found += right(state.params, images[some], given.y[some])
        return float(found) / total

    serve(lap)


main()
