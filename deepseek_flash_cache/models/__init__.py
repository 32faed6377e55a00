"""Small real models for demos, tests and benchmarks."""
