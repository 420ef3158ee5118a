// Tabs, filters, colour scheme and printing.
const TABS = {
  map: ['Map', renderMap],
  gallery: ['Gallery', renderGallery],
  suspects: ['Suspects', renderSuspects],
  verify: ['Verify', renderVerify],
  memory: ['Memory', renderMemory],
  scores: ['Scores', renderScores],
  compare: ['Compare', renderCompare],
};
const FILTERED = new Set(['map', 'gallery']);
const FILTERS = ['task', 'label', 'source', 'kept', 'side'];
const names = Object.keys(TABS).filter((name) =>
  (name !== 'compare' || data.runs.length > 1) && (name !== 'scores' || !data.numbers) &&
  (name !== 'map' || data.runs.some((r) => r.measurements > 0)));

function refresh() {
  const panel = byId(`panel-${state.tab}`);
  const focused = document.activeElement;
  const mark = panel.contains(focused) ? [...panel.querySelectorAll('button, input, select')].indexOf(focused) : -1;
  TABS[state.tab][1](panel);
  // A view made anew must not lose the place of someone who uses the keyboard, unless it has one for them.
  if (mark >= 0 && !panel.contains(document.activeElement)) panel.querySelectorAll('button, input, select')[mark]?.focus({ preventScroll: true });
}

function renderTabs() {
  byId('tabs').replaceChildren(
    ...names.map((name) => {
      const extra = name === 'suspects' ? suspectRows().length : 0;
      const tab = el('button', {
        type: 'button', role: 'tab', id: `tab-${name}`, 'aria-controls': `panel-${name}`,
        on: { click: () => tapTab(name), keydown: tabKeys },
      }, TABS[name][0]);
      if (extra) tab.append(el('span', { class: 'badge' }, count(extra)));
      return tab;
    }),
  );
}

function openTab(name, focus = false) {
  state.tab = name;
  for (const other of names) {
    const open = other === name;
    const tab = byId(`tab-${other}`);
    tab.setAttribute('aria-selected', String(open));
    tab.tabIndex = open ? 0 : -1;
    if (open && focus) tab.focus();
    byId(`panel-${other}`).hidden = !open;
  }
  byId('filters').hidden = !FILTERED.has(name) || !measured();
  refresh();
}

// What was chosen is to be in view, also on a phone, where the top of the page fills the screen.
function tapTab(name) {
  openTab(name);
  const top = byId('panels').getBoundingClientRect().top;
  const head = document.querySelector('header.top');
  if (top < 0 || top > 0.6 * innerHeight) scrollTo(0, head.offsetTop + head.offsetHeight);
  byId(`tab-${name}`).scrollIntoView({ block: 'nearest', inline: 'nearest' });
  if (name === 'verify') byId('deck')?.focus({ preventScroll: true }); // arrows are verdicts, not tabs
}

function tabKeys(event) {
  const at = names.indexOf(state.tab);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  openTab(names[(to + names.length) % names.length], true);
}

function renderFilters() {
  const points = run().points;
  const values = (column) => [...new Set(column)].sort((a, b) => a - b);
  const changed = () => {
    zoom = null;
    showCount();
    refresh();
  };
  byId('filters').replaceChildren(
    select('Task', 'task', [['all', 'All tasks'], ...values(points.task).map((task) =>
      [task, `Task ${task + 1}${taskWords(task) ? ` (${taskWords(task)})` : ''}`])], changed),
    data.numbers ? '' : select('Class', 'label', [['all', 'All classes'], ...values(points.label).map((label) => [label, className(label)])], changed),
    select('Came', 'source', [['all', 'New or from memory'], ['new', 'New data'], ['memory', 'From memory']], changed),
    select('Memory', 'kept', [['all', 'Kept or not'], ['kept', 'Kept'], ['dropped', 'Not kept']], changed),
    select('Side', 'side', [['all', 'All four'], ...SIDES.map((side) => [side, SIDE_WORDS[side]])], changed),
    el('p', { class: 'found' }, el('strong', { id: 'found' }), el('button', { type: 'button', id: 'clear', class: 'quiet', on: { click: () => clearFilters() } }, 'Clear')),
  );
  showCount();
}

function showCount() {
  const words = rowsWords(filtered().length);
  byId('found').textContent = words;
  byId('clear').hidden = FILTERS.every((name) => state[name] === 'all');
  say(`${words} shown`);
}

function clearFilters(but = {}) {
  for (const name of FILTERS) state[name] = but[name] ?? 'all';
  zoom = null;
  renderFilters();
  refresh();
}

byId('truth').addEventListener('click', () => {
  state.truth = !state.truth;
  renderSummary();
  refresh();
});

function renderAll() {
  for (const name of ['task', 'label']) {  // the other run may not have it
    if (state[name] !== 'all' && !run().points[name].includes(+state[name])) state[name] = 'all';
  }
  renderSummary();
  renderTabs();
  renderFilters();
  openTab(state.tab);
}

function renderRunSwitch() {
  if (data.runs.length < 2) return;
  const box = byId('run-switch');
  const made = choice('Run', 'run', data.runs.map((r, number) => [number, `${letter(number)}: ${r.method}`]), () => {
    zoom = null;
    card = null;
    hiddenKeys.clear();
    renderAll();
  });
  box.replaceWith(made);
  made.id = 'run-switch';
}

const prefersDark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? 'dark' : 'light')) === 'dark';

function nameTheme() {
  byId('theme').textContent = isDark() ? '☀ Light' : '☾ Dark';
}

byId('theme').addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  nameTheme();
  refresh();
});
prefersDark.addEventListener('change', () => {
  nameTheme();
  refresh();
});
byId('filters').addEventListener('submit', (event) => event.preventDefault());
byId('detail').addEventListener('click', (event) => event.target === byId('detail') && byId('detail').close());

// On paper all views follow each other, in ink on white.
let screenTheme;
addEventListener('beforeprint', () => {
  screenTheme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = 'light';
  const tab = state.tab;
  for (const name of names) {
    byId(`panel-${name}`).hidden = false;
    state.tab = name;
    TABS[name][1](byId(`panel-${name}`));
  }
  state.tab = tab;
  for (const chart of charts.values()) chart.getZr().flush();
});
addEventListener('afterprint', () => {
  if (screenTheme) document.documentElement.dataset.theme = screenTheme;
  else delete document.documentElement.dataset.theme;
  openTab(state.tab);
});

nameTheme();
renderRunSwitch();
if (data.runs.length > 1) state.tab = 'compare';
else if (!measured()) state.tab = run().scores.id.length ? 'verify' : run().memory.some((step) => step.held) ? 'memory' : 'scores';
if (measured()) state.task = String(run().points.task.reduce((a, b) => Math.max(a, b)));
renderAll();
