"""The profiles (quick, lite, paper), one YAML each: how much of an experiment to run."""
