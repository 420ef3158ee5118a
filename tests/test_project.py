"""What is written down twice about the project says the same."""

import re
import tomllib

import yaml

import metasp
from tests.helpers import ROOT


def pins(name: str) -> dict[str, str]:
    """Versions by normalised name."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", key).lower(): version for key, version in found}


def test_the_lock_holds_the_pins_and_their_hashes():
    """torch has no hash, for the build that fits depends on the machine, nor has what it alone
    needs; pip is what reads the lock."""
    wanted, locked = pins("constraints.txt"), pins("requirements.lock")
    beside = {name: wanted[name] for name in ("torch", "networkx", "sympy", "mpmath", "pip")}
    assert {**beside, **locked} == wanted, "run `make lock`"
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[\w.-]+(?:\[[\w,-]+\])?==)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked)
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["version"] == project["version"] == metasp.__version__
    assert (
        cited["preferred-citation"]["title"] == "Exploring Example Influence in Continual Learning"
    )


def test_the_public_host_runs_what_a_developer_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    steps = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert steps == ["make test slow", "make wheel"]
    assert {word for step in steps for word in step.split()[1:]} <= set(targets)
