"""The main table: groups, labels, bold, bullets, missing seeds."""

import json

import pytest
from scipy.stats import ttest_rel

from metasp.errors import UserError
from metasp.metrics import METRICS
from metasp.reports.groups import as_published, group
from metasp.reports.notes import Comparison
from metasp.reports.runs import gather
from metasp.reports.scores import difference_tables, score_tables
from tests.helpers import list_anew
from tests.reports.run_factories import make_run


def tables_of(folder, **how):
    return score_tables(group(gather([folder]).records), Comparison(**how))


def labels(folder):
    return [[row.label for row in g.rows] for g in group(gather([folder]).records)]


def cell(table, label, column):
    (row,) = [row for row in table.rows if row[0].text == label]
    return row[table.header.index(column)]


def test_groups_are_by_benchmark_and_memory_and_the_memoryless_stand_in_each(tmp_path):
    for memory in (50, 100):
        make_run(tmp_path, method="er", memory=memory)
    make_run(tmp_path, method="finetune", memory=0, selection=None)
    make_run(tmp_path, method="er", memory=300, benchmark="split-cifar10")
    found = group(gather([tmp_path]).records)
    assert [(g.benchmark, g.memory) for g in found] == [
        ("split-cifar10", 300),
        ("split-digits", 50),
        ("split-digits", 100),
    ]
    assert [[row.label for row in g.rows] for g in found] == [
        ["er"],
        ["finetune", "er"],
        ["finetune", "er"],
    ]


def test_runs_on_different_data_are_never_in_one_table(tmp_path):
    make_run(tmp_path, method="er")
    make_run(tmp_path, method="gem", limit_per_class=10)
    make_run(tmp_path, method="mir", data_digest="other-data")
    found = group(gather([tmp_path]).records)
    assert [[row.label for row in g.rows] for g in found] == [["gem"], ["er"], ["mir"]]
    titles = [g.title for g in found]
    assert len(set(titles)) == len({g.slug for g in found}) == 3
    assert "limit per class 10" in titles[0]


def test_rows_are_named_by_what_sets_them_apart(tmp_path):
    make_run(tmp_path, method="er")
    make_run(tmp_path, method="er", rehearse_last=2)
    make_run(tmp_path, method="er", epochs=9, rehearse_last=9)
    make_run(tmp_path, method="gem", lr=0.03)
    make_run(tmp_path, method="metasp", rehearse_last=2, settings={"pseudo_steps": 1})
    make_run(tmp_path, method="metasp", rehearse_last=2, settings={"pseudo_steps": 3})
    make_run(tmp_path, method="metasp-only-s", settings={"shuffle_influence": True})
    assert labels(tmp_path) == [
        [
            "er",
            "er (epochs 9)",
            "er (rehearse last 2)",
            "gem",
            "metasp (pseudo steps 3, rehearse last 2)",
            "metasp (rehearse last 2)",
            "metasp-only-s (shuffled)",
        ]
    ]


def test_best_is_bold_but_never_the_bound_of_joint_training(tmp_path):
    for seed in (1, 2, 3):
        make_run(tmp_path, 0.9, method="joint", selection=None, memory=0, seed=seed)
        make_run(tmp_path, 0.6, method="er", seed=seed)
        make_run(tmp_path, 0.4, method="gem", seed=seed)
    table = tables_of(tmp_path)[0]
    assert [cell(table, name, "A_∞").bold for name in ("joint", "er", "gem")] == [
        False,
        True,
        False,
    ]


def test_bullets_mark_both_directions_and_only_what_is_significant(tmp_path):
    for seed in range(5):
        make_run(tmp_path, 0.6, method="metasp-rehsel", seed=seed)
        make_run(tmp_path, 0.3, method="er", seed=seed)
        make_run(tmp_path, 0.9, method="gem", seed=seed)
        make_run(tmp_path, 0.601, method="mir", seed=seed)
    table = tables_of(tmp_path)[0]
    texts = {name: cell(table, name, "A_∞").text for name in ("metasp-rehsel", "er", "gem", "mir")}
    marks = {name: sign for name, text in texts.items() for sign in "●○" if sign in text}
    assert marks == {"er": "●", "gem": "○"}
    assert "metasp-rehsel is significantly better" in " ".join(table.notes)


@pytest.mark.parametrize("holm", [False, True])
def test_p_values_are_scipys_and_the_correction_is_over_each_column(tmp_path, holm):
    """Also where the marks go by the corrected ones: each number keeps its place."""
    names = ("er", "gem", "mir", "gss")
    for seed in range(5):
        for number, name in enumerate(names):
            make_run(tmp_path, 0.5 + 0.01 * number, method=name, seed=seed)
    groups = group(gather([tmp_path]).records)
    how = Comparison(against="er", holm=holm)
    data = score_tables(groups, how)[0].data
    rows = {row.label: row for row in groups[0].rows}
    for metric in METRICS:
        scores = {name: list(rows[name].scores("class_il", metric).values()) for name in names}
        p = {name: ttest_rel(scores["er"], scores[name]).pvalue for name in names[1:]}
        ranked = sorted(p, key=lambda name: p[name])
        steps = [min(1.0, (3 - place) * p[name]) for place, name in enumerate(ranked)]
        corrected = {name: max(steps[: place + 1]) for place, name in enumerate(ranked)}
        for entry in data:
            if entry["metric"] == metric and entry["label"] != "er":
                assert entry["p"] == pytest.approx(p[entry["label"]])
                assert entry["p_corrected"] == pytest.approx(corrected[entry["label"]])
                decides = corrected if holm else p
                assert bool(entry["mark"]) == (decides[entry["label"]] < 0.05)
    (table, _) = difference_tables(groups, how)
    (entry,) = [e for e in data if e["label"] == "gss" and e["metric"] == "A_inf"]
    shown = cell(table, "gss", "A_∞").text
    p_words = [f"{entry[key]:.3f}".removeprefix("0") for key in ("p", "p_corrected")]
    assert shown == f"{-entry['reference_minus_this']:+.2f} ({'; '.join(p_words)})"
    assert [row[0].text for row in table.rows] == ["gem", "gss", "mir"]


def test_few_seeds_are_cautioned_about_and_five_are_not(tmp_path):
    for seed in range(5):
        make_run(tmp_path, 0.6, method="metasp-rehsel", seed=seed)
        make_run(tmp_path, 0.3, method="er", seed=seed)
    assert not tables_of(tmp_path)[0].cautions
    for seed in range(4):
        make_run(tmp_path, 0.4, method="gem", seed=seed)
    (note,) = tables_of(tmp_path)[0].cautions
    assert note.startswith("caution: 1 of 2 comparisons rest on 4 seeds")


def test_rows_of_another_schedule_are_named(tmp_path):
    make_run(tmp_path, method="er")
    make_run(tmp_path, method="er", rehearse_last=2)
    make_run(tmp_path, method="metasp", rehearse_last=None)
    make_run(tmp_path, method="finetune", selection=None, memory=0)
    table = tables_of(tmp_path)[0]
    (note,) = [note for note in table.notes if note.startswith("schedules differ")]
    schedules = {d["label"]: d["schedule"] for d in table.data if d["schedule"]}
    assert set(schedules) == {"er (rehearse last 2)", "metasp"}
    assert "in the last 2 of 5 epochs" in schedules["er (rehearse last 2)"]
    assert "in the last 1 of 5 epochs" in schedules["metasp"]
    assert all(f"{label}: {words}" in note for label, words in schedules.items())
    assert "the others rehearse in every epoch" in note


def test_missing_seeds_are_named_and_never_paired(tmp_path):
    for seed in (1, 2, 3, 4):
        make_run(tmp_path, 0.6, method="metasp-rehsel", seed=seed)
    for seed in (2, 3, 9):
        make_run(tmp_path, 0.3, method="er", seed=seed)
    table = tables_of(tmp_path)[0]
    assert cell(table, "er", "seeds").text == "3 of 5"
    notes = " ".join(table.notes)
    assert "er lacks seeds 1, 4" in notes
    assert "metasp-rehsel lacks seed 9" in notes
    (entry,) = [d for d in table.data if d["label"] == "er" and d["metric"] == "A_inf"]
    assert (entry["pairs"], entry["missing_seeds"]) == (2, "1 4")


def test_a_default_is_what_it_was_when_the_run_was_made(tmp_path):
    """Whatever the method's default is by now."""
    run = make_run(tmp_path, method="mir", settings={"candidates": 7})
    assert labels(tmp_path) == [["mir (candidates 7)"]]
    result = json.loads((run / "result.json").read_text())
    result["defaults"]["method.candidates"] = 7
    (run / "result.json").write_text(json.dumps(result))
    list_anew(run)
    assert labels(tmp_path) == [["mir"]]


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "metasp-rehsel", "settings": {"strength": 8.0}},
        {"method": "metasp-rehsel", "settings": {"scope": "head"}},
        {"method": "metasp-rehsel", "settings": {"every": 10}},
        {"method": "mir", "settings": {"candidates": 5000}},
        {"method": "mir", "selection": "ring"},
    ],
)
def test_a_variant_says_so_even_alone_and_without_published_figures(tmp_path, changes):
    make_run(tmp_path, benchmark="split-cifar10", memory=300, **changes)
    (row,) = group(gather([tmp_path]).records)[0].rows
    assert not as_published(row)
    (key,) = changes.get("settings", {"selection": "ring"})
    assert key in row.label


def test_versions_are_footnoted_where_they_differ(tmp_path):
    make_run(tmp_path, method="er", version="0.1.0")
    assert not any("version" in note for note in tables_of(tmp_path)[0].notes)
    make_run(tmp_path, method="gem", version="0.2.0")
    assert any("0.1.0: er; 0.2.0: gem" in note for note in tables_of(tmp_path)[0].notes)


def test_whom_to_compare_with_must_be_there_and_be_one(tmp_path):
    make_run(tmp_path, method="er", epochs=9, rehearse_last=9)
    make_run(tmp_path, method="er", epochs=8, rehearse_last=8)
    make_run(tmp_path, method="gem")
    with pytest.raises(UserError, match="did you mean 'gem'"):
        tables_of(tmp_path, against="gen")
    with pytest.raises(UserError, match="several rows"):
        tables_of(tmp_path, against="er")
    assert tables_of(tmp_path, against="er (epochs 9)")
    assert tables_of(tmp_path, against="er, epochs 9")
    with pytest.raises(UserError, match="row to compare with"):
        tables_of(tmp_path, against="er, epochs 7")


def test_a_single_seed_is_not_tested_and_the_table_says_so(tmp_path):
    make_run(tmp_path, 0.6, method="metasp-rehsel")
    make_run(tmp_path, 0.3, method="er")
    table = tables_of(tmp_path)[0]
    assert not any(entry["mark"] for entry in table.data)
    assert difference_tables(group(gather([tmp_path]).records), Comparison()) == []
    assert any("no tests" in note for note in table.notes)
    assert not any("significantly" in note for note in table.notes)


def test_influence_added_to_a_method_is_part_of_its_name(tmp_path):
    """So is its control; its other settings are said where they are not the usual ones."""
    from metasp.reports.groups import as_published

    for seed in (1, 2):
        make_run(tmp_path, 0.5, method="derpp", seed=seed)
        for settings in ({}, {"shuffle_influence": True}, {"gamma": 0.5}):
            make_run(tmp_path, 0.6, method="derpp", influence="metasp", seed=seed,
                     settings=settings)  # fmt: skip
        make_run(tmp_path, 0.6, method="derpp", influence="robust", seed=seed)
        make_run(tmp_path, 0.4, method="metasp", seed=seed, settings={"shuffle_influence": True})
    assert labels(tmp_path) == [
        [
            "derpp",
            "derpp + influence",
            "derpp + influence (gamma 0.5)",
            "derpp + influence, shuffled",
            "derpp + robust influence",
            "metasp (shuffled)",
        ]
    ]
    (found,) = group(gather([tmp_path]).records)
    assert [row.label for row in found.rows if as_published(row)] == ["derpp"]
