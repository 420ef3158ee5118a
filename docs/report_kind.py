"""Tables of `metasp report` on pages of results."""

from pathlib import Path

from metasp.metrics import SCENARIO_WORDS
from metasp.reports.records import gather
from metasp.reports.reference import Comparison
from metasp.reports.render import markdown
from metasp.reports.swept import swept, swept_differences, swept_tables

FINAL = "A_inf"


def report(results: Path, by: str, against: str) -> str:
    """The final class-incremental accuracy of every row of results by a field, and the differences
    to one row with their p-values: before Holm's correction and after it, over all of them."""
    sections = swept(gather([results]).records, by)
    how = Comparison(against, True, None, (FINAL,))
    tables = [*swept_tables(sections, how), *swept_differences(sections, how)]
    words = SCENARIO_WORDS["class_il"]
    return markdown([table for table in tables if words in table.title]).rstrip()
