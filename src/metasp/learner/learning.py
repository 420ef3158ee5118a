"""One task of a learner, from beginning to end, or not at all."""

from collections.abc import Generator
from typing import TYPE_CHECKING

from metasp.engine.mistakes import Diverged
from metasp.errors import UserError
from metasp.events import Evaluated, Event, RunFinished, TaskFinished, as_record
from metasp.influence import Ledger
from metasp.learner import intake
from metasp.learner.data import Arriving
from metasp.learner.stored import back_to, modes, restore_modes, snapshot
from metasp.learner.view import without_inputs
from metasp.types import State

if TYPE_CHECKING:
    from metasp.learner.learner import ContinualLearner


def task_events(
    learner: "ContinualLearner", arriving: Arriving, random: State
) -> Generator[Event, None, None]:
    """One task from beginning to end, or not at all, with the random streams as they were
    before the data was read."""
    learner._check_idle("learn")
    trainer, before = learner._trainer, {**snapshot(learner), "random": random}
    ledger, mode, done = trainer.learner.ledger, modes(learner.model), False
    learner._busy = True
    try:
        with learner._random.used():
            intake.open_task(learner, arriving)
        if not learner.model.training:
            learner.model.train()
        for event in learner._random.around(trainer.run()):
            if isinstance(event, RunFinished):
                break
            if isinstance(event, Evaluated):
                told = {**as_record(event), "on": list(event.on)}
                learner._learned[-1].setdefault("tested", []).append(told)
            if isinstance(event, TaskFinished):
                close_task(learner, ledger, event)
                done, learner._busy = True, False
                restore_modes(mode)
            yield event
    except Diverged as error:
        raise UserError(
            f"{error.event}: try a smaller lr; the learner is as it was before this task."
        ) from error
    finally:
        learner._busy = False
        if not done:
            back_to(learner, before)
            restore_modes(mode)


def close_task(learner: "ContinualLearner", ledger: Ledger, event: TaskFinished) -> None:
    """Keep of the task what the learner needs to know: not its inputs."""
    learner._history.merge(ledger)
    if learner._trainer.tasks[-1].classes:
        learner._records.note(event)
    learner._audit.add_task(event.task, event.scores)
    learner._trainer.tasks[-1] = without_inputs(learner._trainer.tasks[-1])
    learner._trainer.learner.current = None
    learner._learned[-1]["ended"] = intake.now()
