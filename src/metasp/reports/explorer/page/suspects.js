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
  const counted = way === scores.best ? scores.count : `By ${way}, ${count(expected)} of ${plural(scores.all, 'label')} (${percent(expected / scores.all)}) look wrong.`;
  const intro = `${counted} The most suspect come first. ${way[0].toUpperCase() + way.slice(1)}: ${words}. ` +
    'Tick those that are wrong, or verify them one after the other.';
  const parts = heading('Suspects', intro);
  const all = state.wide ? order : suspectRows();
  const rows = state.pair ? all.filter((row) => pairOf(row) === state.pair) : all;
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
      ...saveButtons(),
      data.numbers ? null : el('button', { type: 'button', class: 'quiet', id: 'cleaned', on: { click: () => download('cleaned.csv', cleanedCsv()) } }, 'Cleaned list')),
    ...(data.numbers ? [] : [el('div', { class: 'pair' }, pairParts(all), shareBars())]),
    ...bulk(rows),
  );
  if (state.truth && run().wrong) parts.push(el('p', { class: 'hint', id: 'found-wrong' }, foundWords(rows)));
  if (rows.length) {
    const [box, more] = grid(rows, suspectCard, 48);
    box.classList.add('cards');
    parts.push(box, more);
  } else {
    parts.push(empty('No suspects', 'No label is expected to be wrong.'));
  }
  parts.push(...twinParts());
  panel.replaceChildren(...parts.filter(Boolean));
}

// The label that an example was given and the class that is suggested; null where it is the same.
function pairOf(row) {
  const { label, predicted } = run().scores;
  return predicted[row] === null || predicted[row] === label[row] ? null : `${label[row]}>${predicted[row]}`;
}

const MATRIX = 12; // classes up to which pairs are a matrix

// How often each class is suggested in place of each label; a choice shows those examples alone.
function pairParts(rows) {
  const counts = new Map();
  for (const row of rows) {
    const pair = pairOf(row);
    if (pair) counts.set(pair, (counts.get(pair) || 0) + 1);
  }
  if (!counts.size) return el('figure', {});
  const classes = [...new Set([...counts.keys()].flatMap((pair) => pair.split('>').map(Number)))].sort((a, b) => a - b);
  const button = (pair, words) => el('button', {
    type: 'button', 'aria-pressed': String(state.pair === pair), data: { pair }, 'aria-label': `${pairWords(pair)}: ${counts.get(pair)}`,
    on: { click: () => { state.pair = state.pair === pair ? null : pair; refresh(); } },
  }, words);
  const title = el('figcaption', {}, 'Given labels and suggested classes: choose a number to see those alone');
  if (classes.length > MATRIX) {
    const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 18);
    return el('figure', { id: 'pairs' }, title, el('div', { class: 'classes' }, most.map(([pair, n]) => button(pair, `${pairWords(pair)} ${count(n)}`))));
  }
  return el('figure', { id: 'pairs' }, title, el('div', { class: 'scroll' }, el('table', { class: 'changes' },
    el('thead', {}, el('tr', {}, el('td', {}, 'given ↓ suggested →'), classes.map((label) => el('th', { scope: 'col' }, className(label))))),
    el('tbody', {}, classes.map((label) => el('tr', {}, el('th', { scope: 'row' }, className(label)), classes.map((other) => {
      const pair = `${label}>${other}`;
      return el('td', {}, counts.has(pair) ? button(pair, count(counts.get(pair))) : '');
    })))))));
}

const pairWords = (pair) => pair.split('>').map((label) => className(+label)).join(' → ');

// The share of labels of each class that look wrong, with the interval where there is one.
function shareBars() {
  const shares = [...run().scores.shares].sort((a, b) => b[2] - a[2]).slice(0, 15);
  const bar = ([label, size, part, low, high]) => {
    const meter = el('span', { class: 'meter range' }, el('i', {}), low === null ? null : el('b', {}));
    meter.firstChild.style.width = percent(part).replace(' ', '');
    if (low !== null) {
      meter.lastChild.style.left = `${100 * low}%`;
      meter.lastChild.style.width = `${100 * (high - low)}%`;
    }
    const between = low === null ? '' : ` (${Math.round(100 * low)}–${Math.round(100 * high)} %)`;
    return el('li', {}, el('span', {}, className(label)), meter, el('small', {}, `${percent(part)}${between} of ${count(size)}`));
  };
  return el('figure', { id: 'shares' }, el('figcaption', {}, 'Share of the labels of each class that look wrong'), el('ul', { class: 'bars' }, shares.map(bar)));
}

// One button for all that are shown, which undo takes back as one.
function bulk(rows) {
  const open = rows.filter((row) => pairOf(row) && !desk().said.has(run().scores.id[row]));
  if (state.wide || !state.pair || !open.length) return state.pair ? [el('p', { class: 'hint' }, `Only ${pairWords(state.pair)}.`)] : [];
  const take = () => {
    const group = Date.now();
    for (const row of open) decide(run().scores.id[row], run().scores.predicted[row], false, group);
    say(`${plural(open.length, 'verdict')} taken.`);
    refresh();
  };
  return [el('div', { class: 'tools' }, el('strong', {}, `Only ${pairWords(state.pair)}`),
    el('button', { type: 'button', id: 'bulk', on: { click: take } }, `Take the suggested class for all ${count(open.length)}`))];
}

// Examples that look the same and carry different labels: one of them is wrong.
function twinParts() {
  if (data.numbers) return [];
  const apart = data.twins.filter(([a, b]) => rowOf(a) !== undefined && rowOf(b) !== undefined && labelOf(a) !== labelOf(b));
  if (!apart.length) return [];
  const [box, more] = grid(apart, (ids) => el('div', { class: 'card' }, ids.map((id) =>
    el('button', { type: 'button', class: 'tile', data: { id }, on: { click: () => openDetail(id) } }, picture(id, 88, `example ${id}`), el('span', { class: 'tile-name' }, className(labelOf(id)))))), 12);
  box.classList.add('cards');
  box.id = 'twins';
  return [el('h3', {}, `Nearly the same, with different labels (${count(apart.length)})`), box, more];
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
