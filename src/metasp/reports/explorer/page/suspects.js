// Suspects: the labels most likely wrong, by the same numbers as `metasp suspects` goes.
const suspectWay = () => (run().scores.ways[state.way] ? state.way : run().scores.best);

// Rows of the scores, the most suspect first: as many as are expected to be wrong.
function suspectRows(r = run(), way = suspectWay()) {
  const found = r.scores.ways[way];
  return found ? found.order.slice(0, found.expected) : [];
}

function renderSuspects(panel) {
  const { scores } = run();
  if (!scores.id.length) {
    return panel.replaceChildren(...heading('Suspects'), empty('No scores yet',
      'No task of this run is finished, or its method does not say how its examples fare.'));
  }
  const way = suspectWay();
  state.way = way;
  const { expected, words, order } = scores.ways[way];
  const intro =
    `By ${way}, about ${count(expected)} of ${plural(scores.all, 'label')} (${percent(expected / scores.all)}) look wrong: ` +
    `a rough guess where the network has not learned its data${data.numbers ? '' : ', or a class is mostly wrong'}. ` +
    `The most suspect come first. ${way[0].toUpperCase() + way.slice(1)}: ${words}. ` +
    'Tick those that are wrong, or verify them one after the other.';
  const parts = heading('Suspects', intro);
  const rows = state.wide ? order : suspectRows();
  const wide = el('input', { type: 'checkbox', id: 'wide', checked: Boolean(state.wide) });
  wide.addEventListener('change', () => {
    state.wide = wide.checked;
    refresh();
  });
  parts.push(
    el('div', { class: 'tools' },
      choice('By', 'way', Object.keys(scores.ways).map((name) => [name, name[0].toUpperCase() + name.slice(1)]), refresh),
      el('label', { class: 'check' }, wide, 'all examples'),
      el('span', { class: 'spacer' }),
      el('button', { type: 'button', on: { click: () => openTab('verify') } }, 'Verify one by one'),
      ...saveButtons()),
  );
  if (state.truth && run().wrong) parts.push(el('p', { class: 'hint', id: 'found-wrong' }, foundWords(rows)));
  if (rows.length) {
    const [box, more] = grid(rows, suspectCard, 48);
    box.classList.add('cards');
    parts.push(box, more);
  } else {
    parts.push(empty('No suspects', 'No label is expected to be wrong.'));
  }
  panel.replaceChildren(...parts);
}

function foundWords(rows) {
  const known = truths();
  const hits = rows.filter((row) => known.has(run().scores.id[row])).length;
  return `Of these ${count(rows.length)}, ${count(hits)} are known to be wrong (${percent(rows.length ? hits / rows.length : null)}); ` +
    `on this page ${count(known.size)} are.`;
}

function suspectCard(row) {
  const { scores } = run();
  const id = scores.id[row];
  const way = suspectWay();
  const box = el('input', { type: 'checkbox', 'aria-label': `example ${id} is wrong` });
  box.checked = desk().said.get(id) === null;
  box.addEventListener('change', () => {
    decide(id, box.checked ? null : undefined);
    for (const button of byId('panel-suspects').querySelectorAll('#save, #download')) button.replaceWith(saveButtons().find((other) => other.id === button.id));
    note.textContent = verdictWords(id);
  });
  const predicted = predictedOf(id);
  const note = el('span', { class: 'tile-note said' }, verdictWords(id));
  return el(
    'div',
    { class: 'card', data: { id, row } },
    el('button', { type: 'button', class: 'plain', 'aria-label': `details of example ${id}`, on: { click: () => openDetail(id) } },
      picture(id, 88, `example ${id}`)),
    el('div', { class: 'card-words' },
      el('p', {}, 'labelled ', el('strong', {}, className(labelOf(id)))),
      predicted === null ? null : el('p', {}, 'model says ', el('strong', { class: predicted === labelOf(id) ? '' : 'says' }, className(predicted))),
      el('p', { class: 'tile-note' }, `${way} ${short(scores.ways[way].values[row])} · task ${scores.task[row] + 1} · #${id}`),
      originNote(id),
      truthNote(id),
      el('label', { class: 'check' }, box, 'wrong label'), ' ', note),
  );
}

// Labels that are known to be wrong, as they were made so; shown only to who asks.
const truthCache = new Map();
function truths() {
  if (!truthCache.has(run())) truthCache.set(run(), new Map(run().wrong || []));
  return truthCache.get(run());
}

function truthNote(id) {
  if (!state.truth || !run().wrong) return null;
  const label = truths().get(id);
  return el('p', { class: `truth ${label === undefined ? '' : 'known-wrong'}` },
    label === undefined ? 'known to be right' : `known to be wrong: it is ${className(label)}`);
}
