"""The paper's tables, one YAML each: what every cell runs and the figure the paper gives."""
