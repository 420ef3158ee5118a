"""A sweep file stands for exactly the runs a reader would write down by hand."""

from datetime import date

import pytest

from metasp.errors import UserError
from metasp.methods import RECOMMENDED
from metasp.spec import RunSpec
from metasp.sweeps.grid import expand, parse, presets, read_sweep
from metasp.sweeps.jobs import jobs_of

PAPER = [
    "paper-table-1",
    "paper-time",
    "paper-validation-size",
    "paper-influence-epochs",
    "paper-pseudo-steps",
    "paper-rehearsal",
    "paper-statistics",
]


def runs(**tables):
    return [(s.method, s.memory, s.seed, s.rehearse_last) for s in expand(parse(tables, "my.toml"))]


def test_the_grid_is_the_product_in_file_order():
    found = runs(method="er", grid={"memory": [50, 100], "seed": [1, 2]})
    assert found == [("er", m, s, None) for m in (50, 100) for s in (1, 2)]


def test_a_method_without_memory_is_run_once_per_seed_not_once_per_memory():
    found = runs(grid={"method": ["er", "finetune"], "memory": [50, 100], "seed": [1]})
    assert sorted(found) == [("er", 50, 1, None), ("er", 100, 1, None), ("finetune", 0, 1, None)]
    replayed = {"memory_batch": [16, 32], "augment_memory": [True, False]}
    assert runs(grid={"method": ["joint"], **replayed}) == [("joint", 0, RunSpec().seed, None)]


def test_a_setting_of_a_variant_may_be_given_to_the_others_alone():
    table = {"method": {"name": "metasp", "gamma": 0.3}}
    found = expand(parse({"grid": {"method": [table, "metasp-only-s"]}}, "x"))
    assert [spec.settings for spec in found] == [{"gamma": 0.3}, {}]
    tables = {"method.gamma": 0.3, "grid": {"method": ["metasp", "metasp-only-s"]}}
    override = {"metasp-only-s": {"method": {"gamma": 1.0}}}
    assert len(expand(parse({**tables, "override": override}, "x"))) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"class_order": "3,0,2"}, "class"),
        ({"method": "mir", "memory_batch": 64}, "would take them all"),
        ({"method": "metasp", "method.cluster": "features"}, "does not cluster the task"),
        ({"method": "er", "selection": "gradient-diverse"}, "use gss"),
        ({"method": "metasp", "method.pseudo_steps": date(2020, 1, 1)}, "must be a whole number"),
    ],
)
def test_a_mistake_is_told_before_any_run(values, words, tmp_path):
    specs = expand(parse({**values, "grid": {"seed": [1, 2]}}, "my.toml"))
    with pytest.raises(UserError, match=words):
        jobs_of(specs, tmp_path, None)


def test_a_table_in_a_list_sets_several_fields_at_once():
    found = runs(
        epochs=4,
        grid={"method": ["er", {"method": "er", "rehearse_last": 2}], "seed": [7]},
    )
    assert found == [("er", 200, 7, None), ("er", 200, 7, 2)]


def test_an_override_beats_the_grid_for_its_method_only():
    found = expand(
        parse(
            {"grid": {"method": ["er", "joint"], "lr": [0.5]}, "override": {"er": {"lr": 0.1}}},
            "my.toml",
        )
    )
    assert [(s.method, s.lr) for s in found] == [("er", 0.1), ("joint", 0.5)]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"grid": {"memry": [1]}}, "'memory'"),
        ({"memry": 1, "grid": {"seed": [1]}}, "'memory'"),
        ({"grid": {"method": ["err"]}}, "'er'"),
        ({"grid": {}}, "empty"),
        ({"method": "er"}, "empty"),
        ({"grid": {"seed": []}}, "must be a list"),
        ({"grid": {"seed": 3}}, "must be a list"),
        ({"grid": [{"seed": [3]}]}, "one table"),
        ({"grid": {"seed": [1]}, "override": {"joint": {"lr": 1}}}, "joint"),
        ({"method": "er", "grid": {"seed": [1]}, "override": {"er": {"lrr": 1}}}, "'lr'"),
        ({"grid": {"seed": [1]}, "override": 3}, "tables by method"),
        ({"method": "er", "grid": {"seed": [1]}, "override": {"er": {"method": "mir"}}}, "another"),
        ({"grid": {"memory": [-1]}}, "at least 0"),
        ({"epochs": 2, "grid": {"rehearse_last": [3]}}, "rehearse_last"),
        ({"grid": {"method": [3]}}, "must be a name"),
        ({"grid": {"method.nonsense": [3]}}, "nonsense"),
        ({"grid": {"pseudo_steps": [3]}}, "did you mean 'method.pseudo_steps'"),
        (
            {"grid": {"method": ["metasp", {"method": "er", "method.influence_last": 2}]}},
            "key in the table of er",
        ),
        (
            {"grid": {"method": ["er", {"method": "er", "lr": 0.5}], "lr": [0.1, 0.2]}},
            "method and lr in the grid of my.toml both set lr",
        ),
        (
            {
                "method.pseudo_steps": 2,
                "method": {"name": "metasp", "pseudo_steps": 3},
                "grid": {"seed": [1]},
            },
            "method.pseudo_steps appears twice",
        ),
        (
            {"method.gamma": 0.3, "grid": {"method": ["metasp", "metasp-only-s"]}},
            "metasp-only-s a variant",
        ),
        ({"grid": {"method": ["metasp-only-p"], "method.gamma": [0.3]}}, "makes metasp-only-p"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_cure(tables, words):
    with pytest.raises(UserError) as caught:
        expand(parse(tables, "my.toml"))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", [f"{name}{size}" for name in PAPER for size in ("", "-small")])
def test_every_preset_of_the_paper_is_there_and_sound(name):
    assert name in presets()
    assert len(expand(read_sweep(name))) > 1


def test_listing_many_runs_loads_each_data_set_once(monkeypatch, tmp_path):

    from metasp import data

    loads = []
    real = data.BENCHMARKS["split-digits"]
    monkeypatch.setitem(
        data.BENCHMARKS, "split-digits", lambda *given: loads.append(1) or real(*given)
    )
    specs = expand(
        parse(
            {
                "grid": {
                    "class_order": ["fixed", "shuffled"],
                    "memory": list(range(20, 40)),
                    "seed": [1, 2, 3, 4, 5],
                }
            },
            "my.toml",
        )
    )
    jobs = jobs_of(specs, tmp_path, None)
    assert len(jobs) == 200
    assert len(loads) == 1


def test_the_listed_name_is_the_one_a_single_run_would_have(tmp_path):
    from metasp.experiment import prepare

    for spec in expand(
        parse({"class_order": "shuffled", "grid": {"seed": [3], "method": ["er", "joint"]}}, "x")
    ):
        (job,) = jobs_of([spec], tmp_path, None)
        assert job.path == prepare(spec, tmp_path).directory.path


def test_an_override_wins_however_the_setting_is_written():
    grid = {"method": {"pseudo_steps": [1, 3]}}
    sweep = {"method": {"name": "metasp", "pseudo_steps": 2}, "grid": grid}
    assert [s.settings["pseudo_steps"] for s in expand(parse(sweep, "my.toml"))] == [1, 3]
    sweep["override"] = {"metasp": {"method.pseudo_steps": 5}}
    assert [s.settings["pseudo_steps"] for s in expand(parse(sweep, "my.toml"))] == [5]


def test_influence_is_an_axis_whose_settings_go_to_the_points_that_have_it():
    found = expand(
        parse(
            {
                "influence.gamma": 0.5,
                "grid": {
                    "method": ["er", "derpp"],
                    "influence": ["none", "metasp"],
                    "influence.shuffle_influence": [False, True],
                },
            },
            "my.toml",
        )
    )
    shuffled = "influence.shuffle_influence"
    assert [(s.method, s.influence, s.settings.get(shuffled)) for s in found] == [
        (method, *rest)
        for method in ("er", "derpp")
        for rest in (("none", None), ("metasp", False), ("metasp", True))
    ]
    assert [s.settings.get("influence.gamma") for s in found] == 2 * [None, 0.5, 0.5]
    with pytest.raises(UserError, match=r"method.gamma in my.toml is a setting of metasp, "):
        expand(parse({"method.gamma": 0.5, "grid": {"method": ["er"]}}, "my.toml"))
    table = {"method": "derpp", "influence": "robust", "influence.weigh_from": 5}
    (spec,) = expand(parse({"grid": {"method": [table]}}, "my.toml"))
    assert (spec.influence, spec.settings) == ("robust", {"influence.weigh_from": 5})


def test_best_is_the_recommended_method_and_selection():
    both = ("best", RECOMMENDED.method)
    tables = {
        "method.alpha": 0.3,
        "grid": {"method": list(both)},
        "override": {"best": {"epochs": 3}},
    }
    best, named = expand(parse(tables, "my.toml"))
    assert (best.method, best.selection, best.epochs) == (*RECOMMENDED, 3)
    assert (named.method, named.selection, named.epochs) == (RECOMMENDED.method, None, 5)
    (spec,) = expand(parse({"selection": "ring", "grid": {"method": ["best"]}}, "my.toml"))
    assert (spec.method, spec.selection) == (RECOMMENDED.method, "ring")
