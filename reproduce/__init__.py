"""The paper reproduced: its sweeps, tables, figures and published numbers, beside the package."""
