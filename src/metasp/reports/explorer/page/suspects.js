// Suspects: examples that hurt both and to which the model gives another class.
const ticked = new Map(data.runs.map((r) => [r.name, remembered(r.name)]));

// Ticks outlive a reload where the browser lets a page store anything.
function remembered(name) {
  try {
    return new Set(JSON.parse(localStorage.getItem(`metasp/${name}`) || '[]'));
  } catch {
    return new Set();
  }
}

function keepTicks() {
  try {
    localStorage.setItem(`metasp/${run().name}`, JSON.stringify([...ticked.get(run().name)]));
  } catch {
    // A page opened from disk may not be allowed to: the ticks then last until it is closed.
  }
}

const harm = (points, row) => points.fused[row] / (typical(run(), 'fused', points.task[row]) || 1);

// One row per example: the one in which it does most harm for its task.
function suspectRows(disagreeing) {
  const points = run().points;
  const found = new Map();
  for (let row = 0; row < points.id.length; row += 1) {
    if (!(points.stability[row] > 0 && points.plasticity[row] > 0)) continue;
    const other = points.predicted[row];
    if (disagreeing && (other === null || other === points.label[row])) continue;
    const best = found.get(points.id[row]);
    if (best === undefined || harm(points, row) > harm(points, best)) found.set(points.id[row], row);
  }
  const key = state.suspectOrder === 'loss'
    ? (row) => points.loss[row] ?? -Infinity
    : (row) => harm(points, row);
  return [...found.values()].sort((a, b) => key(b) - key(a) || a - b);
}

const hasPredictions = () => run().points.predicted.some((value) => value !== null);

function renderSuspects(panel) {
  if (!measured()) return panel.replaceChildren(...heading('Suspects'), noInfluences());
  const intro =
    'These hurt both remembering and learning, and at the end of the task the model gives them ' +
    'another class than their label: often a wrong label, sometimes just a hard example. Tick ' +
    'those that are wrong and take the list with you.';
  const parts = heading('Suspects', intro);
  if (!hasPredictions()) {
    parts.push(el('p', { class: 'note' }, 'This run did not record what the model would say: shown is all that hurts both.'));
  }
  const rows = suspectRows(state.disagree && hasPredictions());
  const chosen = ticked.get(run().name);
  const save = el('button', { type: 'button', class: 'primary', id: 'export', on: { click: () => download(rows) } });
  const update = () => {
    const n = rows.filter((row) => chosen.has(run().points.id[row])).length;
    save.textContent = n ? `Save ${n} as CSV` : 'Save ticked as CSV';
    save.disabled = !n;
    keepTicks();
  };
  const all = (on) => () => {
    for (const row of rows) chosen[on ? 'add' : 'delete'](run().points.id[row]);
    refresh();
  };
  const wide = el('input', { type: 'checkbox', id: 'disagree', checked: !state.disagree });
  wide.addEventListener('change', () => {
    state.disagree = !wide.checked;
    refresh();
  });
  parts.push(
    el('div', { class: 'tools' },
      choice('Order', 'suspectOrder', [['harm', 'Most harmful first'], ['loss', 'Highest loss first']], refresh),
      hasPredictions() ? el('label', { class: 'check' }, wide, 'also where the model agrees') : null,
      el('span', { class: 'spacer' }),
      rows.length ? el('button', { type: 'button', class: 'quiet', on: { click: all(true) } }, 'Tick all') : null,
      rows.length ? el('button', { type: 'button', class: 'quiet', on: { click: all(false) } }, 'Untick all') : null,
      rows.length ? save : null),
  );
  if (rows.length) {
    const [box, more] = grid(rows, (row) => suspectCard(row, chosen, update), 48);
    box.classList.add('cards');
    parts.push(box, more);
    update();
  } else {
    parts.push(empty('No suspects', 'No example hurts both while the model disagrees with its label.'));
  }
  panel.replaceChildren(...parts);
}

function suspectCard(row, chosen, update) {
  const points = run().points;
  const id = points.id[row];
  const box = el('input', { type: 'checkbox', checked: chosen.has(id), 'aria-label': `example ${id} is wrong` });
  box.addEventListener('change', () => {
    chosen[box.checked ? 'add' : 'delete'](id);
    update();
  });
  const predicted = points.predicted[row];
  return el(
    'div',
    { class: 'card', data: { id, row } },
    el('button', { type: 'button', class: 'plain', 'aria-label': `details of example ${id}`, on: { click: () => openDetail(id) } },
      picture(id, 88, `example ${id}`)),
    el('div', { class: 'card-words' },
      el('p', {}, 'labelled ', el('strong', {}, className(points.label[row]))),
      predicted === null ? null : el('p', {}, 'model says ', el('strong', { class: 'says' }, className(predicted))),
      el('p', { class: 'tile-note' }, `hurts ${harm(points, row).toFixed(1)}× the typical size · task ${points.task[row] + 1} · #${id}`),
      el('label', { class: 'check' }, box, 'wrong label')),
  );
}

// Values keep the sign of influence.parquet: above 0 hurts.
function csv(rows) {
  const points = run().points;
  const names = ['id', 'task', 'label', 'label_name', 'predicted', 'predicted_name', 'stability', 'plasticity', 'fused', 'loss'];
  const body = rows.map((row) => [
    points.id[row], points.task[row], points.label[row], className(points.label[row]), points.predicted[row],
    points.predicted[row] === null ? null : className(points.predicted[row]),
    points.stability[row], points.plasticity[row], points.fused[row], points.loss[row],
  ]);
  return [names, ...body].map((line) => line.map(cell).join(',')).join('\r\n') + '\r\n';
}

function cell(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  // A spreadsheet takes a text that begins so for a formula: a class name must not run.
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(rows) {
  const chosen = rows.filter((row) => ticked.get(run().name).has(run().points.id[row]));
  const address = URL.createObjectURL(new Blob([csv(chosen)], { type: 'text/csv' }));
  const link = el('a', { href: address, download: `suspects-${run().name}.csv` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  say(`Saved ${plural(chosen.length, 'suspect')}.`);
}
