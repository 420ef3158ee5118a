"""The paper reproduced: its tables, figures, sweeps and published numbers. No run needs this."""
