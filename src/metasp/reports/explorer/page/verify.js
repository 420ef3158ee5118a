// The deck: one example after the other, one key each.
const scoreRow = new Map(data.runs.map((r) => [r.name, new Map(r.scores.id.map((id, row) => [id, row]))]));
const rowOf = (id) => scoreRow.get(run().name).get(id);
const labelOf = (id) => (data.numbers ? run().scores.target : run().scores.label)[rowOf(id)] ?? -1;
const predictedOf = (id) => (data.numbers ? run().scores.said : run().scores.predicted)[rowOf(id)] ?? null;
const groupOf = (label) => (data.numbers ? -1 : label); // numbers make one trusted set, each class its own
const bestWay = () => run().scores.ways[run().scores.best];
const KEYS = '1234567890';
let card = null; // the id on the table
let choosing = false; // whether the list of classes is open

const MIX = 3; // every third card is a sure one, until each class has enough of them
const LAST = 20; // verdicts on suspects by which the page says whether more are worth it

// The most suspect first, and among them a few of each class that are likely right.
function nextCard() {
  const { said, skipped } = desk();
  const open = (id) => !said.has(id) && !skipped.has(id);
  const suspect = run().deck.then.find(open);
  const mixed = suspect === undefined || said.size % MIX === MIX - 1 ? sureCard(open) : undefined;
  return mixed ?? suspect ?? null;
}

function sureCard(open) {
  const have = verifiedCounts();
  const poor = Object.keys(run().deck.right).map(Number).filter((label) => (have.get(label) || 0) < desk().target)
    .sort((a, b) => (have.get(a) || 0) - (have.get(b) || 0) || a - b);
  for (const label of poor) {
    const id = run().deck.right[label].find(open);
    if (id !== undefined) return id;
  }
  return undefined;
}

// Verified examples of each class: those that the run had, and those of this deck.
function verifiedCounts() {
  const found = new Map();
  const add = (label) => found.set(groupOf(label), (found.get(groupOf(label)) || 0) + 1);
  for (const [id, label] of run().trusted) if (!desk().said.has(id)) add(label);
  for (const label of desk().said.values()) if (label !== null) add(label);
  return found;
}

const missing = () => {
  const have = verifiedCounts();
  return Object.keys(run().deck.right).reduce((sum, label) => sum + Math.max(0, desk().target - (have.get(+label) || 0)), 0);
};

function renderVerify(panel) {
  const title = 'Verify';
  if (!run().scores.id.length) {
    return panel.replaceChildren(...heading(title), empty('Nothing to verify yet',
      'No task of this run is finished, or its method does not say how its examples fare.'));
  }
  if (card === null || rowOf(card) === undefined) card = nextCard();
  panel.replaceChildren(
    el('div', { class: 'tools head' }, ...heading(title), progress(), el('span', { class: 'spacer' }), targetChoice()),
    card === null ? allDone() : deckCard(card),
    ...saving(),
    ...given(),
  );
  panel.querySelector('#choose-class')?.focus({ preventScroll: true });
}

function progress() {
  const left = missing();
  const size = `${desk().target}${data.numbers ? '' : ' per class'}`;
  const sure = new Set(Object.values(run().deck.right).flatMap((ids) => ids.slice(0, desk().target)));
  const last = [...desk().said].filter(([id]) => !sure.has(id)).slice(-LAST);
  const wrong = last.filter(([id, label]) => label !== labelOf(id)).length;
  const rare = last.length === LAST && wrong <= LAST / 5;
  const words = rare && !left
    ? `Enough: of the last ${LAST} suspects you called ${wrong} wrong, and ${size} are sure`
    : `${plural(desk().said.size, 'verdict')}; ${left ? `${count(left)} sure ones to come, ${size}` : `${size} are sure`}` +
      (last.length ? `; of the last ${count(last.length)} suspects ${count(wrong)} were wrong` : '');
  const whole = desk().target * Object.keys(run().deck.right).length;
  const bar = el('span', { class: 'meter' }, el('i', {}));
  bar.firstChild.style.width = `${whole ? (100 * (whole - left)) / whole : 100}%`;
  return el('div', { class: 'progress' }, el('strong', { id: 'progress' }, words), bar);
}

function targetChoice() {
  state.target = desk().target;
  const unit = data.numbers ? 'examples' : 'per class';
  const box = choice(`Sure examples among the suspects, ${unit}`, 'target', [...new Set([0, 3, 5, 10, 20, data.sure])].sort((a, b) => a - b).map((n) => [n, String(n)]), () => {
    desk().target = state.target;
    card = null;
    keepDesk();
    refresh();
  });
  return el('div', { class: 'check' }, box, `sure ${unit}`);
}

function deckCard(id) {
  const label = labelOf(id);
  const predicted = predictedOf(id);
  const model = !data.numbers && predicted !== null && predicted !== label ? predicted : null;
  return el('div', { class: `deck ${pictures.kind === 'texts' ? 'texts' : ''}`, id: 'deck', tabindex: '-1', data: { id } },
    el('div', { class: `deck-picture ${pictures.kind === 'sprites' ? '' : 'wide'}` }, picture(id, 240, `example ${id}`)),
    el('div', { class: 'deck-words' },
      el('p', { class: 'question' }, 'Is this ', el('strong', { id: 'label' }, className(label)), '?'),
      el('p', { class: 'tile-note' }, `${why(id)} · task ${run().scores.task[rowOf(id)] + 1} · example ${id}`),
      originNote(id),
      data.numbers ? el('p', { class: 'tile-note' }, `the model says ${className(predicted)}`) : null,
      truthNote(id),
      el('div', { class: 'verdicts' },
        key('→', 'Right', 'right', () => judge(label)),
        key('←', 'Wrong', 'wrong', () => judge(null)),
        key('↑', 'It is …', 'other', () => openChoice()),
        model === null ? null : key('M', `It is ${className(model)}, as the model says`, 'model', () => judge(model)),
        key('↓', 'Skip', 'skip', () => skipCard()),
        key('⌫', 'Undo', 'undo', () => takeBack(), !desk().past.length)),
      choosing ? classList(label) : null,
      el('div', { class: 'references' }, references(id, label, 'labelled'), model === null ? null : references(id, model, 'suggested:'), nearest(id))));
}

// Verified examples of a class or, where there are none, the easiest.
function references(id, label, words) {
  if (data.numbers) return null;
  const verified = [...desk().said, ...run().trusted].filter(([other, given]) => given === label && other !== id).map(([other]) => other);
  const easiest = (run().deck.right[label] || []).filter((other) => other !== id && !desk().said.has(other) && !verified.includes(other));
  return strip(`${words} ${className(label)}`, [...verified, ...easiest].slice(0, 3));
}

const nearOf = new Map(data.near);
const nearest = (id) => strip('nearest', nearOf.get(id) || [], true);

function strip(title, ids, named = false) {
  if (!ids.length || pictures.kind === 'none') return null;
  return el('figure', { class: 'strip' }, el('figcaption', {}, title), el('div', {}, ids.map((id) =>
    el('button', { type: 'button', class: 'plain', 'aria-label': `details of example ${id}`, on: { click: () => openDetail(id) } },
      picture(id, 64, `example ${id}`), named && labelOf(id) !== -1 ? el('small', {}, className(labelOf(id))) : null))));
}

function key(sign, words, name, act, off = false) {
  return el('button', { type: 'button', id: `verdict-${name}`, disabled: off, on: { click: act } }, el('kbd', {}, sign), ` ${words}`);
}

// Why this one is asked about, in words.
function why(id) {
  const way = bestWay();
  const row = rowOf(id);
  const value = way.values[row];
  const told = value === null ? '' : ` (${run().scores.best} ${short(value)})`;
  if (way.order.indexOf(row) < way.expected) return `its label looks wrong${told}`;
  if (run().deck.right[groupOf(labelOf(id))]?.includes(id)) return `its label is likely right${told}`;
  return `the model is not sure${told}`;
}

// With at most ten classes each has a key; else a person types the beginning of a name.
const keyOf = (label) => {
  const digits = data.classes.every((name) => /^\d$/.test(name));
  return digits ? data.classes[label] : KEYS[label];
};
const fewClasses = () => data.classes.length > 0 && data.classes.length <= KEYS.length;

function openChoice() {
  choosing = true;
  refresh();
}

function classList(label) {
  if (data.numbers) return numberInput();
  const box = el('div', { class: 'classes', role: 'group', 'aria-label': 'It is' });
  const many = !fewClasses();
  const total = Math.max(data.classes.length, ...Object.keys(run().deck.right).map((name) => +name + 1));
  const shown = (text) => [...Array(total).keys()].filter((other) =>
    other !== label && className(other).toLowerCase().includes(text.toLowerCase())).slice(0, 24);
  const fill = (text) => box.replaceChildren(...shown(text).map((other) =>
    el('button', { type: 'button', data: { label: other }, on: { click: () => judge(other) } },
      many ? null : el('kbd', {}, keyOf(other)), many ? '' : ' ', className(other))));
  fill('');
  if (!many) return box;
  const input = el('input', { type: 'text', id: 'choose-class', 'aria-label': 'Type the beginning of a class', placeholder: 'Type a class, Enter takes the first', autocomplete: 'off' });
  input.addEventListener('input', () => fill(input.value));
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') box.querySelector('button')?.click();
    else if (event.key === 'Escape') {
      choosing = false;
      refresh();
    } else return;
    event.preventDefault();
  });
  return el('div', { class: 'chooser' }, input, box);
}

function numberInput() {
  const input = el('input', { type: 'text', id: 'choose-class', inputmode: 'decimal', 'aria-label': 'Type the number', placeholder: 'Type the number, then Enter', autocomplete: 'off' });
  input.addEventListener('keydown', (event) => {
    const value = input.value.trim() === '' ? NaN : Number(input.value.trim().replace('−', '-'));
    if (event.key === 'Escape') {
      choosing = false;
      refresh();
    } else if (event.key === 'Enter' && Number.isFinite(value)) judge(value);
    else return;
    event.preventDefault();
  });
  return el('div', { class: 'chooser' }, input);
}

function judge(label) {
  decide(card, label);
  go(nextCard(), label === null ? 'Wrong.' : label === labelOf(card) ? 'Right.' : `It is ${className(label)}.`);
}

function skipCard() {
  decide(card, undefined, true);
  go(nextCard(), 'Skipped.');
}

function takeBack() {
  const id = undo();
  if (id !== null) go(id, 'Taken back.');
}

function go(id, words) {
  card = id;
  choosing = false;
  desk().words = '';
  refresh();
  say(`${words} ${id === null ? 'Nothing is left to ask.' : `Next: is example ${id} ${className(labelOf(id))}?`}`);
}

function allDone() {
  const again = el('button', { type: 'button', on: { click: () => {
    desk().skipped.clear();
    keepDesk();
    go(nextCard(), '');
  } } }, 'Show the skipped ones again');
  const back = el('button', { type: 'button', on: { click: takeBack } }, 'Undo the last');
  return empty('That was all', 'Save your verdicts and train again.', desk().skipped.size ? again : null, desk().past.length ? back : null);
}

function saving() {
  const { said, words, unsaved } = desk();
  const amiss = served?.runs[run().name].amiss;
  const told = words || (!said.size ? 'Verdicts stay in this browser until you save them.'
    : unsaved ? 'Not saved yet: they stay in this browser until you do.' : 'All saved.');
  const show = el('button', { type: 'button', id: 'command', 'aria-expanded': String(Boolean(state.command)), on: { click: () => {
    state.command = !state.command;
    refresh();
  } } }, state.command ? 'Hide the command' : 'Train again: show the command');
  return [
    el('div', { class: 'tools' }, ...saveButtons(), run().again ? show : null, el('span', { class: 'hint', id: 'saved' }, told)),
    amiss ? el('p', { class: 'note' }, `What is saved cannot be read, and is not written over: ${amiss}`) : null,
    state.command ? el('div', { class: 'commands', id: 'commands' }, commands().flatMap(([title, line]) =>
      [title ? el('p', { class: 'hint' }, title) : null, el('pre', {}, line)])) : null,
  ].filter(Boolean);
}

// What was said so far, the latest first; a click takes an example up again.
function given() {
  const ids = [...desk().said.keys()].reverse();
  if (!ids.length) return [];
  const right = ids.filter((id) => desk().said.get(id) === labelOf(id)).length;
  const wrong = ids.filter((id) => desk().said.get(id) === null).length;
  const [box, more] = grid(ids, (id) => el('button', {
    type: 'button', class: 'tile', data: { id }, 'aria-label': `example ${id}: ${verdictWords(id)}; look again`,
    on: { click: () => go(id, 'Look again.') },
  }, picture(id, 64, `example ${id}`), el('span', { class: 'tile-name' }, className(labelOf(id))), el('span', { class: 'tile-note' }, verdictWords(id))), 24);
  box.id = 'given';
  return [el('h3', {}, `Said so far: ${count(right)} right, ${count(wrong)} wrong, ${count(ids.length - right - wrong)} ${data.numbers ? 'of another number' : 'of another class'}`), box, more];
}

const DECK_KEYS = {
  ArrowRight: () => judge(labelOf(card)), r: () => judge(labelOf(card)),
  ArrowLeft: () => judge(null), w: () => judge(null),
  ArrowUp: openChoice, i: openChoice,
  ArrowDown: skipCard, s: skipCard,
  m: () => !data.numbers && predictedOf(card) !== null && judge(predictedOf(card)),
};

addEventListener('keydown', (event) => {
  const typing = event.target.closest?.('input, select, textarea, dialog');
  if (state.tab !== 'verify' || event.defaultPrevented || typing || event.altKey) return;
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const back = name === 'Backspace' || (name === 'z' && (event.ctrlKey || event.metaKey)) || (name === 'u' && !event.ctrlKey && !event.metaKey);
  if (!back && (event.ctrlKey || event.metaKey)) return;
  let act = back ? takeBack : null;
  if (!act && name === 'Escape' && choosing) act = () => { choosing = false; refresh(); };
  if (!act && card !== null) {
    const label = fewClasses() ? [...data.classes.keys()].find((other) => keyOf(other) === name) : undefined;
    act = label === undefined ? DECK_KEYS[name] : () => judge(label);
  }
  if (!act) return;
  event.preventDefault();
  if (!event.repeat) act(); // a key held down is one verdict
});
