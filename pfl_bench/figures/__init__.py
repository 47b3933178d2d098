"""One module per figure. A figure is drawn from what is stored, or from a partition or a trained
model that it is given; running what is missing is the business of `pfl_bench.cli.figure`.

Sizes, colours and files are those of `pfl_bench.picture`.
"""
