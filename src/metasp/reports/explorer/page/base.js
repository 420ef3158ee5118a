// The data, the state of the page, and the few ways it makes elements. Text from the data only
// ever enters the page as text.
const data = JSON.parse(document.getElementById('data').textContent);

const MEASURES = {
  fused: 'both together',
  stability: 'remembering',
  plasticity: 'learning',
};
const SIDES = ['both', 'remembering', 'learning', 'neither'];
const SIDE_WORDS = {
  both: 'Helps both',
  remembering: 'Helps remembering only',
  learning: 'Helps learning only',
  neither: 'Hurts both',
};
const SIDE_SHORT = { both: 'both', remembering: 'remembering', learning: 'learning', neither: 'hurts' };
const SCENARIOS = {
  class_il: 'Any class (class-IL)',
  task_il: 'Task given (task-IL)',
};

const state = {
  run: 0,
  tab: 'map',
  task: 'all',
  label: 'all',
  source: 'all',
  kept: 'all',
  side: 'all',
  measure: 'fused',
  order: 'ends',
  colour: data.numbers ? 'side' : 'class',
  scale: 'spread',
  scenario: 'class_il',
  memoryTask: null,
  way: null,
  wide: false,
  truth: false,
  target: data.sure,
  pair: null,
  command: false,
  change: null,
};

const run = () => data.runs[state.run];
const byId = (name) => document.getElementById(name);

function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === 'on') for (const [name, f] of Object.entries(value)) made.addEventListener(name, f);
    else if (key === 'data') Object.assign(made.dataset, value);
    else if (key === 'class') made.className = value;
    else made.setAttribute(key, value === true ? '' : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// Influence below 0 lowers the loss. The page turns the sign: above 0 helps.
const help = (value) => -value;
const count = (n) => n.toLocaleString('en');
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
const percent = (x) => (x === null || x === undefined ? '–' : `${(100 * x).toFixed(1)} %`);
function points100(x) {
  if (x === null || x === undefined) return '–';
  const size = Math.abs(100 * x).toFixed(1);
  return +size === 0 ? size : (x < 0 ? '−' : '+') + size; // what is rounded to 0 has no direction
}

function short(value) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  const text = size !== 0 && size < 1e-4 ? size.toExponential(1) : String(+size.toPrecision(2));
  return (value < 0 ? '−' : '+') + text;
}

// What an example is called: its class or, in a regression, its number.
function className(label) {
  if (data.numbers) return label === null || label === -1 ? 'a number' : number(label);
  return label < data.classes.length ? data.classes[label] : `class ${label}`;
}

const number = (value) => String(+value.toPrecision(4)).replace('-', '−');
const nameOf = (id, label) => className(data.numbers ? labelOf(id) : label);

function sideOf(stability, plasticity) {
  if (stability < 0) return plasticity < 0 ? 'both' : 'remembering';
  return plasticity < 0 ? 'learning' : 'neither';
}

const sideAt = (points, row) => sideOf(points.stability[row], points.plasticity[row]);

// Rows of the run's table that pass all filters.
function filtered() {
  const points = run().points;
  const rows = [];
  for (let row = 0; row < points.id.length; row += 1) {
    if (state.task !== 'all' && points.task[row] !== +state.task) continue;
    if (state.label !== 'all' && points.label[row] !== +state.label) continue;
    if (state.source !== 'all' && points.memory[row] !== +(state.source === 'memory')) continue;
    if (state.kept !== 'all' && points.kept[row] !== +(state.kept === 'kept')) continue;
    if (state.side !== 'all' && sideAt(points, row) !== state.side) continue;
    rows.push(row);
  }
  return rows;
}

// Mean size of a measure in a task: what "typical" means.
const typicalCache = new Map();
function typical(of, measure, task) {
  const key = `${data.runs.indexOf(of)}/${measure}/${task}`;
  if (!typicalCache.has(key)) {
    let sum = 0;
    let n = 0;
    of.points[measure].forEach((value, row) => {
      if (of.points.task[row] === task) {
        sum += Math.abs(value);
        n += 1;
      }
    });
    typicalCache.set(key, n ? sum / n : 0);
  }
  return typicalCache.get(key);
}

// Within a task an example has one row; over all tasks it has one for each in which it was measured.
const rowsWords = (n) => plural(n, state.task === 'all' ? 'measurement' : 'example');

function select(label, name, options, change) {
  const box = el('select', { name, id: `choose-${name}` });
  for (const [value, words] of options) box.append(el('option', { value }, words));
  box.value = String(state[name]);
  box.addEventListener('change', () => {
    state[name] = box.value;
    change();
  });
  return el('label', { class: 'field' }, el('span', {}, label), box);
}

// Buttons of which one is pressed.
function choice(label, name, options, change) {
  const box = el('div', { class: 'switch', role: 'group', 'aria-label': label });
  for (const [value, words] of options) {
    const button = el('button', { type: 'button', data: { value } }, words);
    button.setAttribute('aria-pressed', String(String(state[name]) === String(value)));
    button.addEventListener('click', () => {
      state[name] = value;
      for (const other of box.children) {
        other.setAttribute('aria-pressed', String(other === button));
      }
      change();
    });
    box.append(button);
  }
  return box;
}

function empty(title, words, ...more) {
  return el('div', { class: 'empty' }, el('h3', {}, title), el('p', {}, words), ...more);
}

function heading(title, words) {
  const head = [el('h2', {}, title)];
  if (words) head.push(el('p', { class: 'intro' }, words));
  return head;
}

function say(words) {
  byId('live').textContent = words;
}

const measured = () => run().measurements > 0;

// Without influences map and gallery have the suspects to show, which any method has.
function noInfluences() {
  const many = run().tasks.length > 1;
  return el('p', { class: 'note', id: 'no-influence' },
    many ? `“${run().method}” measured no influence in this run; a method such as metasp-rehsel measures how examples help and hurt. `
      : 'With one task there is nothing older to remember, and no influence was measured. ',
    'Here are all examples, the most suspect first.');
}
