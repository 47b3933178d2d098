"""Figures that belong to one algorithm. A module is a figure: `pfl-bench figure NAME` draws the
`FIGURE` of the module of that name."""
