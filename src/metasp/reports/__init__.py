"""Statistics, tables and figures, from stored records only: nothing here trains or needs torch."""
