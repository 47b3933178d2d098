"""Metrics that belong to one algorithm, a module for each that has any; it declares them as
`metrics`."""
