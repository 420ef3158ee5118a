"""Every page is played: its Python and its shell commands, in the order of the page."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys

import click
import pytest

from metasp.cli import COMMANDS
from tests.docs.pages import (
    Page,
    check_console,
    every_flag,
    pages,
    parse,
    simple_commands,
    words_of,
)
from tests.helpers import ROOT

# Pages whose commands take hours: they are read by the command line's parser and not run.
PARSED_ONLY = {"results", "paper"}
# What a fence may be. python and sh run, toml and whatever has a title is written to that file,
# diff is applied, console is checked by name; the rest holds no commands.
KINDS = {"python", "sh", "toml", "diff", "console", "text", "{toctree}", "{eval-rst}"}
NEEDS = {
    "parallel": "ray",
    "tutorials/own-data": "datasets",
    "tutorials/trainers": "pytorch_lightning accelerate",
    "reports": "mlflow",
    "streams": "river",
}
RUNS = ("python", "sh", "diff")

EVERY = pages()
PLAYED = [
    page
    for page in EVERY
    if page.name not in PARSED_ONLY and any(block.kind in RUNS for block in page.blocks)
]


def named(page: Page) -> str:
    return page.name


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    """A process that has everything loaded and plays pages in forks of itself."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("METASP_", "RAY_"))}
    environment.pop("MLFLOW_TRACKING_URI", None)
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "MPLBACKEND": "agg",
        "BROWSER": "true",
        "METASP_CACHE": str(tmp_path_factory.mktemp("cache")),
        "HF_HUB_OFFLINE": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.docs.play"],
        cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        yield process
        os.killpg(process.pid, signal.SIGKILL)  # it, and a page that hangs


@pytest.mark.slow
@pytest.mark.parametrize("page", PLAYED, ids=named)
def test_every_snippet_runs(page, player, tmp_path):
    for need in NEEDS.get(page.name, "").split():
        if importlib.util.find_spec(need) is None:
            pytest.skip(f"the page {page.name} needs {need}, which is not installed")
    if any(block.kind == "diff" for block in page.blocks):  # the reader changes the code itself
        shutil.copytree(ROOT / "src" / "metasp", tmp_path / "src" / "metasp")
    player.stdin.write(f"{page.path.relative_to(ROOT)}\t{tmp_path}\n")
    player.stdin.flush()
    code = player.stdout.readline().strip()
    assert code == "0", (tmp_path / "output.txt").read_text(errors="replace")[-4000:]


@pytest.mark.parametrize("page", EVERY, ids=named)
def test_no_block_escapes_the_test(page):
    """All fences are found, each is of a known kind, and no command hides outside of them."""
    blocks = page.blocks
    assert page.text.count("```") == 2 * len(blocks)
    assert {block.kind for block in blocks} <= KINDS
    for block in blocks:
        assert block.title or block.kind != "toml", "a TOML file needs a name: title=…"
        assert not block.title or page.text.count(block.title) > 1, "say the file's name in words"
        assert block.kind != "console" or block.commands
        if block.kind == "text" and page.name != "cli":
            assert not re.search(rf"metasp ({'|'.join(COMMANDS)})\b", block.text)
    indented = [line for line in page.prose.splitlines() if line.startswith(("    ", "\t"))]
    assert not [line for line in indented if line.split()[:1] in (["metasp"], ["pip"], ["make"])]


@pytest.mark.parametrize("page", EVERY, ids=named)
def test_every_command_shown_exists(page):
    """Commands that do not run here are at least ones that the command line would take."""
    changed = any(block.kind == "diff" for block in page.blocks)  # the code, and its flags
    for block in page.blocks:
        for command in block.commands:
            if block.kind == "console":
                check_console(words_of(command))
            elif block.kind == "sh" and words_of(command)[0] == "metasp" and not changed:
                parse(words_of(command), complete=True)


@pytest.mark.parametrize("page", EVERY, ids=named)
def test_every_command_in_running_text_exists(page):
    for text in page.inline:
        for words in simple_commands(text) if text.startswith("metasp ") else ():
            assert words[0] == "metasp"
            parse(words, complete=False)
        if text.startswith("--"):
            assert set(re.findall(r"--[a-z-]+", text)) <= every_flag(), text


@pytest.mark.parametrize("page", EVERY, ids=named)
def test_every_link_leads_to_a_file(page):
    for target in page.links:
        assert (page.path.parent / target).exists(), target


def test_a_page_can_fail_these_tests():
    for mistake in ("metasp runn", "metasp run --epoch 3 --nothing", "metasp memory lst RUN",
                    "metasp run --epochs many", "metasp run --method erx",
                    "metasp sweep no-such-sweep", "metasp bench step"):  # fmt: skip
        with pytest.raises(click.UsageError):
            parse(mistake.split(), complete=True)
    for fine in ("metasp run --rehearse-last N", "metasp explore", "metasp resume RUN --track …"):
        parse(fine.split(), complete=False)
        with pytest.raises(click.UsageError):
            parse([*fine.split(), "--nothing"], complete=False)
