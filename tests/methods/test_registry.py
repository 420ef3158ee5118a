"""What is listed of a method without torch is what its class says."""

import pytest

from metasp.config import setting
from metasp.methods import METHODS, Method, Recipe, Settings


@pytest.mark.parametrize("name", METHODS)
def test_the_registry_and_the_class_agree(name):
    recipe = METHODS[name]
    assert recipe.Settings is recipe.kind.Settings
    assert recipe.settings == dict(recipe.Settings(**recipe.preset))
    assert recipe.what.endswith(".")
    if name != "metasp-rehsel":  # which differs from metasp by its selection
        assert recipe.selection == recipe.kind.selection


def test_a_method_of_ones_own_says_all_by_its_class():
    class Rarely(Settings):
        times: int = setting(2, "How often.", min=1)

    class Mine(Method):
        Settings = Rarely
        selection = None

    assert Recipe(Mine).settings == {"times": 2}
    assert Recipe(Mine, {"times": 3}).settings == {"times": 3}
    assert Recipe(Mine).selection is None
    assert Recipe(Mine).what == "What is listed of a method without torch is what its class says."
