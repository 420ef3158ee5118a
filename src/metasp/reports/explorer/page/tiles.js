// An example to look at: its picture, its row, or its number; and the window with all about it.
const pictures = data.pictures;
const placeOf = new Map((pictures.ids || []).map((id, place) => [id, place]));
const sheets = JSON.parse(byId('sheets').textContent);
const styled = new Set();

function sheetClass(number) {
  if (!styled.has(number)) {
    styled.add(number);
    const rule = `.sheet-${number} { background-image: url("${sheets[number]}"); }`;
    document.styleSheets[0].insertRule(rule, document.styleSheets[0].cssRules.length);
  }
  return `sheet-${number}`;
}

// The file or the row that an example is in, where it is the user's own.
const origins = new Map(data.origins);

function originNote(id) {
  const words = origins.get(id);
  return words ? el('p', { class: 'tile-note origin' }, words) : null;
}

// `width` in CSS pixels; the height follows the picture's shape.
function picture(id, width, words) {
  const place = placeOf.get(id);
  if (pictures.kind === 'rows' && place !== undefined) return rowTable(place, width > 150 ? 40 : 4);
  if (pictures.kind === 'texts' && place !== undefined) return wordsOf(place, width);
  if (pictures.kind !== 'sprites' || place === undefined) {
    const made = el('span', { class: 'thumb blank', role: 'img', 'aria-label': words }, `#${id}`);
    made.style.width = `${width}px`;
    made.style.height = `${width}px`;
    return made;
  }
  const sheet = Math.floor(place / pictures.perSheet);
  const tile = place % pictures.perSheet;
  const height = Math.round((width * pictures.height) / pictures.width);
  const made = el('span', {
    class: `thumb ${sheetClass(sheet)}`,
    role: 'img',
    'aria-label': words,
    data: { place },
  });
  const column = tile % pictures.across;
  const line = Math.floor(tile / pictures.across);
  made.style.width = `${width}px`;
  made.style.height = `${height}px`;
  // Each tile has a rim of its own edge, so that smooth scaling never shows a neighbour.
  const { rim } = pictures;
  const scale = width / pictures.width;
  const [stepX, stepY] = [scale * (pictures.width + 2 * rim), scale * (pictures.height + 2 * rim)];
  made.style.backgroundSize = `${stepX * pictures.across}px auto`;
  made.style.backgroundPosition = `${-column * stepX - rim * scale}px ${-line * stepY - rim * scale}px`;
  return made;
}

// Words as they are: a few in a tile, all in the window.
function wordsOf(place, width) {
  const words = pictures.values[place];
  const most = width > 150 ? words.length : 80;
  const shown = words.length > most ? `${words.slice(0, most)}…` : words;
  return el('q', { class: width > 150 ? 'words whole' : 'words' }, shown);
}

function rowTable(place, most) {
  const values = pictures.values[place];
  const shown = values.slice(0, most);
  const list = el('dl', { class: 'row-values' });
  shown.forEach((value, column) =>
    list.append(el('div', {}, el('dt', {}, `${column + 1}`), el('dd', {}, value ?? '–'))),
  );
  const rest = pictures.columns - shown.length;
  if (rest > 0) list.append(el('div', { class: 'rest' }, el('dt', {}, `+ ${count(rest)} more`)));
  return list;
}

const verdict = (value) => (value < 0 ? 'helps' : value > 0 ? 'hurts' : 'does nothing for');

function chip(value, words) {
  const kind = value === null ? 'unknown' : value < 0 ? 'helps' : 'hurts';
  const sign = value === null ? '' : value < 0 ? '▲ ' : '▼ ';
  return el('span', { class: `chip ${kind}`, title: words }, sign + short(value && help(value)));
}

// A button with the picture; opens the details.
function tile(id, label, value, caption, extra = {}) {
  const name = nameOf(id, label);
  const told = value === null ? 'influence not known' : `${verdict(value)} by ${short(help(value))}`;
  return el(
    'button',
    {
      type: 'button',
      class: 'tile',
      'aria-label': `${name}, example ${id}, ${told}${caption ? `, ${caption}` : ''}`,
      data: { id, value: value ?? '', ...extra },
      on: { click: () => openDetail(id) },
    },
    picture(id, 88, `example ${id}`),
    el('span', { class: 'tile-name' }, name),
    value === null ? null : chip(value, told),
    caption ? el('span', { class: 'tile-note' }, caption) : null,
    truthNote(id),
  );
}

// A grid that grows by a button, so that 10,000 tiles never come at once.
function grid(items, make, first = 60) {
  const box = el('div', { class: 'grid' });
  const more = el('button', { type: 'button', class: 'more' });
  let shown = 0;
  function grow(n) {
    box.append(...items.slice(shown, shown + n).map(make));
    shown = Math.min(items.length, shown + n);
    more.hidden = shown >= items.length;
    more.textContent = `Show more (${count(items.length - shown)} left)`;
  }
  more.addEventListener('click', () => {
    const at = shown;
    grow(2 * first);
    box.children[at]?.focus();
  });
  grow(first);
  return [box, more];
}

const sourceWords = (points, row) => (points.memory[row] ? 'from memory' : 'new');

function tip(points, row) {
  const name = nameOf(points.id[row], points.label[row]);
  const predicted = points.predicted[row];
  return el(
    'div',
    { class: 'tip', data: { id: points.id[row] } },
    picture(points.id[row], 96, name),
    el(
      'div',
      {},
      el('strong', {}, name),
      el('p', {}, `example ${points.id[row]} · task ${points.task[row] + 1}`),
      el('p', {}, `${sourceWords(points, row)} · ${points.kept[row] ? 'kept' : 'not kept'}`),
      el('p', {}, `remembering ${short(help(points.stability[row]))}`),
      el('p', {}, `learning ${short(help(points.plasticity[row]))}`),
      predicted !== null && predicted !== points.label[row]
        ? el('p', { class: 'warn' }, `the model says ${className(predicted)}`)
        : null,
      truthNote(points.id[row]),
    ),
  );
}

function openDetail(id) {
  const box = byId('detail');
  const points = run().points;
  const rows = points.id.map((other, row) => (other === id ? row : -1)).filter((row) => row >= 0);
  const label = rows.length ? points.label[rows[0]] : labelOf(id) >= 0 ? labelOf(id) : memoryLabel(id);
  const title = `${nameOf(id, label)} · example ${id}`;
  box.replaceChildren(
    el(
      'div',
      { class: 'detail-head' },
      el('h2', { id: 'detail-title' }, title),
      el('button', { type: 'button', class: 'quiet', on: { click: () => box.close() } }, 'Close'),
    ),
    picture(id, 224, title),
    originNote(id),
    rows.length
      ? detailTable(rows)
      : el('p', {}, 'No influence was measured for this example.'),
    el('p', { class: 'intro' }, `${scoreStory(id)} ${memoryStory(id)}`),
    truthNote(id),
  );
  box.showModal();
}

function detailTable(rows) {
  const { points } = run();
  const body = rows.map((row) => {
    const cells = ['stability', 'plasticity', 'fused'].map((measure) => {
      const value = points[measure][row];
      const usual = typical(run(), measure, points.task[row]);
      const times = usual ? `${(Math.abs(value) / usual).toFixed(1)}× typical` : '';
      return el('td', {}, chip(value, verdict(value)), el('small', {}, times));
    });
    const predicted = points.predicted[row];
    return el(
      'tr',
      {},
      el('th', { scope: 'row' }, `${points.task[row] + 1}`),
      el('td', {}, sourceWords(points, row)),
      cells,
      el('td', {}, predicted === null ? '–' : className(predicted)),
      el('td', {}, points.kept[row] ? 'kept' : 'no'),
    );
  });
  const names = ['Task', 'Came', 'Remembering', 'Learning', 'Together', 'Model says', 'Memory'];
  return el(
    'div',
    { class: 'scroll' },
    el(
      'table',
      {},
      el('thead', {}, el('tr', {}, names.map((name) => el('th', { scope: 'col' }, name)))),
      el('tbody', {}, body),
    ),
  );
}

function scoreStory(id) {
  const row = rowOf(id);
  if (row === undefined) return '';
  const said = verdictWords(id);
  const told = Object.entries(run().scores.ways).filter(([, way]) => way.values[row] !== null)
    .map(([name, way]) => `${name} ${short(way.values[row])}`);
  const model = predictedOf(id) === null ? '' : ` ${data.numbers ? 'The model says' : 'In training the model last said'} ${className(predictedOf(id))}.`;
  return `How its label fares: ${told.join(', ')}.${model}${said ? ` You said: ${said}.` : ''}`;
}

function memoryLabel(id) {
  for (const step of run().memory) {
    const found = step.entered.find((entry) => entry[0] === id);
    if (found) return found[1];
  }
  return -1;
}

function memoryStory(id) {
  const parts = [];
  for (const step of run().memory) {
    if (step.entered.some((entry) => entry[0] === id)) parts.push(`entered the memory after task ${step.task + 1}`);
    if (step.left.some((entry) => entry[0] === id)) parts.push(`left it after task ${step.task + 1}`);
  }
  if (!parts.length) return 'It was not in memory at the end of any task.';
  return `It ${parts.join(', ')}.`;
}
