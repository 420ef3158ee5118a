import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasp.config import fields_with
from metasp.errors import UserError
from metasp.spec import RunSpec


@given(
    st.builds(
        RunSpec,
        benchmark=st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20),
        memory=st.integers(0, 10**6),
        lr=st.none() | st.floats(1e-6, 10),
        lr_drop_at=st.lists(st.integers(1, 99), max_size=3).map(tuple),
        augment=st.booleans(),
        settings=st.dictionaries(
            st.from_regex("[a-z_]+", fullmatch=True), st.integers(), max_size=3
        ),
    )
)
def test_toml_round_trip(tmp_path_factory, spec):
    path = tmp_path_factory.mktemp("spec") / "spec.toml"
    path.write_text(spec.to_toml(), encoding="utf-8")
    again = RunSpec.from_toml(path)
    assert again == spec
    assert again.digest == spec.digest


def test_digest_sees_every_field():
    """A change of any one field is another run."""
    other = {
        "benchmark": "x", "data_digest": "x", "tasks": 2, "class_order": "shuffled",
        "limit_per_class": 3, "method": "joint", "settings": {"a": 1}, "memory": 7,
        "selection": "ring", "rehearse_last": 2, "observe": 1,
        "classes_per_task": (5, 5), "split_by": "order", "image_size": 8, "colour": "grey",
        "label_column": "y", "label_noise": 0.1, "label_noise_scope": "seen",
        "label_noise_kind": "pairs", "imbalance": 0.5, "true_label_column": "z", "labels": "y.csv",
        "decode": "lazy", "skip_corrupt": True,
        "weightless": (6,),
        "trusted": 2, "exclude": (3,), "relabel": ((4, 1),), "verified": ((5, 1),),
        "backbone": "mlp", "width": 8, "model_name": "a.B", "model_digest": "0a", "epochs": 9,
        "batch_size": 8, "memory_batch": 8, "lr": 0.3, "momentum": 0.9, "weight_decay": 0.1,
        "optimizer": "adamw", "influence": "robust", "validation": 0.1, "patience": 5,
        "lr_drop_at": (3,), "lr_drop": 0.5, "augment": False, "augment_memory": False,
        "test_every": 2, "id_column": "i", "text_column": "t", "test": "t.csv",
        "precision": "bf16", "compile": True, "device": "cpu", "threads": 1, "seed": 1,
    }  # fmt: skip
    assert set(other) == set(RunSpec.model_fields)
    digests = {RunSpec().digest, *(RunSpec(**{key: value}).digest for key, value in other.items())}
    assert len(digests) == len(other) + 1


def test_every_field_says_what_it_is_for():
    roles = ("data", "labels", "method", "memory", "model", "training", "machine", "seed")
    by_role = [fields_with(RunSpec, role=role) for role in roles]
    assert sum(map(len, by_role)) == len(RunSpec.model_fields)
    assert all(by_role)
    assert fields_with(RunSpec, owner="method") == ("selection", "lr", "momentum", "weight_decay")


def test_a_list_is_as_good_as_a_tuple():
    assert RunSpec(lr_drop_at=[3]) == RunSpec(lr_drop_at=(3,))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"memory": -1}, "memory must be at least 0"),
        ({"lr": 0.0}, "lr must be greater than 0"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"lr": 10**400}, "lr must be a finite number"),
        ({"lr_drop_at": (5, -3)}, "lr_drop_at must be at least 1, not -3"),
        ({"lr_drop_at": (0,)}, "lr_drop_at must be at least 1, not 0"),
        ({"epochs": "5"}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"momentum": 1.5}, "momentum must be between 0 and 1"),
        ({"precision": "bf61"}, "did you mean 'bf16'"),
        ({"rehearse_last": 9}, "only 5 epochs"),
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"settings": 3}, "must be a table"),
    ],
)
def test_one_sentence_for_a_bad_value(values, words):
    with pytest.raises(UserError, match=words):
        RunSpec.from_dict(values)


@pytest.mark.parametrize(
    "text", [f"seed = {'9' * 5000}", f"lr_drop_at = {'[' * 20_000}{']' * 20_000}"]
)
def test_a_file_that_cannot_be_taken_in_is_one_sentence(tmp_path, text):
    (tmp_path / "long.toml").write_text(text)
    with pytest.raises(UserError, match=r"long.toml holds a number .* lists .*: shorten them.$"):
        RunSpec.from_toml(tmp_path / "long.toml")
