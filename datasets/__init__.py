"""The datasets, one file each, and the partitions that deal them to clients."""
