// The top of the page: what was run, how well it did, and how many examples help.
function renderSummary() {
  const r = run();
  byId('title').textContent = `${r.method} on ${r.benchmark}`;
  byId('summary').textContent = [learned(r), scored(r)].filter(Boolean).join(' ');
  const notes = [];
  if (!r.finished) notes.push('This run is not finished: the page shows the tasks that are.');
  if (pictures.kind === 'none') notes.push(`There are no pictures on this page: ${pictures.why}`);
  if (data.shown < data.examples) {
    notes.push(
      `The page shows ${count(data.shown)} of ${count(data.examples)} examples, as many as it was ` +
        'asked for (--max-examples): first those that were in memory, those to verify and the ' +
        'suspects, then the most helpful and most harmful of each task, and an even sample of the rest. The counts ' +
        'above the tabs and the statistics are of all.',
    );
  }
  byId('notes').hidden = !notes.length;
  byId('notes').textContent = notes.join(' ');
  renderBanner(r);
  renderSides(r);
  byId('about').textContent =
    `Run ${r.name}: ${r.backbone}, ${plural(r.epochs, 'epoch')} per task, seed ${r.seed}` +
    (r.seconds ? `, trained in ${Math.round(r.seconds)} s.` : '.');
}

const MANY = 0.1; // part of the labels that look wrong from which on the page warns

// Where labels are dirty, so are the sets that "helps" and "hurts" are measured against.
function renderBanner(r) {
  const truth = byId('truth');
  truth.hidden = !r.wrong;
  truth.setAttribute('aria-pressed', String(state.truth));
  truth.textContent = state.truth ? 'Hide what is known' : 'Show what is known to be wrong';
  const best = r.scores.ways[r.scores.best];
  const dirty = best && best.expected / r.scores.all >= MANY && measured() && !againstVerified(r).all;
  byId('banner').hidden = !dirty;
  if (!dirty) return;
  byId('banner').replaceChildren(
    el('span', {}, `About ${count(best.expected)} of ${count(r.scores.all)} labels look wrong, and “helps” and “hurts” were measured ` +
      `against such labels${againstVerified(r).any ? ' in part of the tasks' : ''}.`),
    el('button', { type: 'button', on: { click: () => tapTab('verify') } }, 'Verify a few'));
}

// Against what influences were measured: verified examples, in each task, for the old and the new.
function againstVerified(r) {
  const tasks = new Set(r.helped.map((entry) => entry.task));
  const goals = r.goals.filter((goal) => tasks.has(goal.task)).flatMap((goal) => [goal.old, goal.new]);
  return { all: goals.length > 0 && goals.every(Boolean), any: goals.some(Boolean) };
}

function goalWords() {
  const r = run();
  const { all, any } = againstVerified(r);
  if (all) return `Measured against the run’s ${plural(r.trusted.length, 'verified example')}.`;
  if (!any) return 'Measured against examples of the stream, whose labels nobody has verified.';
  const tasks = (name) => r.goals.filter((goal) => goal[name]).map((goal) => goal.task + 1).join(', ') || 'none';
  return `Measured against verified examples in part: for remembering in tasks ${tasks('old')}, for learning in tasks ${tasks('new')}; ` +
    'else against examples of the stream, whose labels nobody has verified.';
}

function learned(r) {
  const tasks = data.numbers ? r.tasks : r.tasks.slice(0, r.scenarios.class_il?.matrix.length ?? 0);
  if (!tasks.length) return '';
  const classes = new Set(tasks.flatMap((task) => task.classes)).size;
  const turns = `in ${plural(tasks.length, 'task')}${tasks.length > 1 ? ', one after the other' : ''}`;
  const kept = r.budget && r.memory.some((step) => step.held)
    ? `, with a memory of ${plural(r.budget, 'example')}` : '';
  if (data.numbers) return `The model learned numbers ${turns}${kept}.`;
  return `The model learned ${plural(classes, 'class', 'classes')} ${turns}${kept}.`;
}

function scored(r) {
  const open = r.scenarios.class_il;
  const given = r.scenarios.task_il;
  if (!open) return r.finished ? '' : 'No task is finished yet.';
  const does = r.given_labels ? 'agrees with the given labels of' : 'is right on';
  if (r.finished && r.tasks.length === 1) return `At the end it ${does} ${percent(open.A_inf)} of the test examples.`;
  return (
    `${r.finished ? 'At the end' : 'So far'} it ${does} ${percent(open.A_inf)} of the test ` +
    `examples of ${r.finished ? 'all tasks' : 'these tasks'}, and on ` +
    `${percent(given.A_inf)} when it is told which task an example belongs to.`
  );
}

function renderSides(r) {
  const box = byId('sides');
  const note = byId('sides-note');
  box.hidden = !measured();
  note.hidden = !measured();
  if (!measured()) return;
  const total = Math.max(1, Object.values(r.sides).reduce((a, b) => a + b, 0));
  const words = {
    both: 'keep what is known and teach what is new',
    remembering: 'keep what is known, at the cost of the new',
    learning: 'teach what is new, at the cost of the old',
    neither: 'get in the way of both',
  };
  box.replaceChildren(
    ...SIDES.map((side) => {
      const meter = el('span', { class: 'meter' }, el('i', {}));
      meter.firstChild.style.width = `${(100 * r.sides[side]) / total}%`;
      return el(
        'button',
        {
          type: 'button',
          class: `side ${side}`,
          title: words[side],
          on: {
            click: () => {
              clearFilters({ side });
              openTab('gallery');
            },
          },
        },
        el('span', { class: 'side-line' }, el('span', { class: 'side-count' }, count(r.sides[side])),
          el('span', { class: 'side-name' }, SIDE_WORDS[side])),
        meter,
      );
    }),
  );
  const tasks = new Set(r.helped.map((entry) => entry.task)).size;
  note.textContent =
    `${plural(r.measured, 'example')} measured in ${plural(tasks, 'task')}; each counts once, by its ` +
    'latest measurement. Choose a side to see its examples.';
}
