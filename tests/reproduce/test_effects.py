"""The figures of one setting: which rows belong together, and what the legend says."""

from reproduce.effects import families
from reproduce.show import EFFECTS

from metasp.reports.figures import draw
from metasp.reports.groups import group
from metasp.reports.runs import gather
from tests.reports.run_factories import make_run, varied_settings


def test_a_setting_that_goes_with_another_or_stays_makes_a_family_of_rows(tmp_path):
    sizes = [(10.0, 10.0), (20.0, 20.0), (20.0, 50.0), (40.0, 50.0), (0.5, 0.25)]
    for old, new in sizes:
        make_run(tmp_path, method="metasp", settings={"validation_old": old, "validation_new": new})
    (group_,) = group(gather([tmp_path]).records)
    found = [
        [tuple(row.spec[f"method.validation_{of}"] for of in ("old", "new")) for row in rows]
        for rows in families(group_, ("validation_old", "validation_new"))
    ]
    assert sorted(found) == [[(10, 10), (20, 20)], [(20, 50), (40, 50)]]


def test_what_stays_the_same_may_also_meet_what_varies(tmp_path):
    for last in (3, 4, 5):
        make_run(tmp_path, method="metasp", settings={"influence_last": last})  # rehearse_last 5
    (group_,) = group(gather([tmp_path]).records)
    (rows,) = families(group_, ("influence_last", "rehearse_last"))
    assert [row.spec["method.influence_last"] for row in rows] == [3, 4, 5]


def test_metrics_are_words_in_a_legend(tmp_path):
    """Names are no mathematics (their dollars are theirs), so the words must do without it."""
    assert [*EFFECTS] == ["validation-size", "influence-epochs", "pseudo-steps"]
    for kind in EFFECTS.values():
        (drawing, *_) = draw(kind, group(gather([varied_settings(tmp_path)]).records))
        words = [text.get_text() for legend in drawing.figure.legends for text in legend.texts]
        assert words == ["A_1", "A_∞", "A_m"]
