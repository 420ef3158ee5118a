// Two runs side by side: scores, and which examples changed sides.
let pairCache = null;

// Rows of both runs that tell of the same example in the same task.
function pairs() {
  if (pairCache) return pairCache;
  const [a, b] = data.runs.map((r) => r.points);
  const rowOf = new Map(b.id.map((id, row) => [`${b.task[row]}/${id}`, row]));
  pairCache = [];
  a.id.forEach((id, row) => {
    const other = rowOf.get(`${a.task[row]}/${id}`);
    if (other !== undefined) pairCache.push([row, other, sideAt(a, row), sideAt(b, other)]);
  });
  return pairCache;
}

const letter = (number) => 'AB'[number];

function renderCompare(panel) {
  const [a, b] = data.runs;
  const differs = a.method !== b.method;
  const title = (r, number) => `${letter(number)}: ${r.method}${differs ? '' : `, seed ${r.seed}, memory ${r.budget}`}`;
  const parts = heading('Two runs side by side',
    'The same examples, trained in two ways: what was corrected, which labels look wrong in one run alone, and which examples help one run and hurt the other.');
  parts.push(...correctedParts(a, b), ...doubtParts(a, b), el('h3', {}, 'Scores'), el('div', { class: 'scroll' }, scoreTable(a, b, title)),
    el('p', { class: 'hint' }, 'One run each: a difference smaller than what another seed would change may be chance.'));
  const found = pairs();
  if (!found.length) {
    parts.push(empty('No example was measured in both runs',
      'Influences can be compared when both runs measure them in the same tasks.'));
    return panel.replaceChildren(...parts);
  }
  const moved = found.filter((pair) => pair[2] !== pair[3]);
  parts.push(
    el('p', { class: 'lead', id: 'moved' },
      `${count(moved.length)} of ${plural(found.length, 'measurement')} made in both runs changed sides ` +
      `(${percent(moved.length / found.length)}).`),
    el('h3', {}, 'From a side in A to a side in B'),
    el('div', { class: 'scroll' }, changeTable(found)),
    el('p', { class: 'hint' }, 'Choose a number to see those examples below.'),
  );
  const boxes = [0, 1].map((number) => el('div', { class: 'chart', id: `compare-${letter(number)}` }));
  parts.push(el('div', { class: 'pair' }, boxes.map((box, number) =>
    el('figure', {}, el('figcaption', {}, title(data.runs[number], number)), box))));
  const chosen = found.filter((pair) =>
    state.change ? pair[2] === state.change[0] && pair[3] === state.change[1] : pair[2] !== pair[3]);
  const words = state.change
    ? `${SIDE_WORDS[state.change[0]]} in A, ${SIDE_WORDS[state.change[1]].toLowerCase()} in B`
    : 'All that changed sides';
  parts.push(el('h3', {}, `${words} (${count(chosen.length)})`));
  const [box, more] = grid(chosen, ([row, other, from, to]) => tile(
    a.points.id[row], a.points.label[row], null, `${SIDE_SHORT[from]} → ${SIDE_SHORT[to]}`, { from, to, row, other }), 36);
  box.id = 'changed';
  parts.push(chosen.length ? box : el('p', { class: 'hint' }, 'None.'), more);
  panel.replaceChildren(...parts);
  drawSideBySide(boxes, found, chosen);
}

// What was said of each example: left out, another class, verified.
function corrections(r) {
  const found = new Map(r.corrections.exclude.map((id) => [id, 'left out']));
  for (const [id, label] of r.corrections.relabel) found.set(id, `relabelled ${className(label)}`);
  for (const [id, label] of r.trusted) found.set(id, `verified ${className(label)}`);
  for (const [id, label] of r.corrections.verified) found.set(id, `verified ${className(label)}`);
  return found;
}

const labelIn = (r, id) => r.scores.label[scoreRow.get(r.name).get(id)] ?? -1;

function section(title, words, id, items, caption) {
  if (!items.length) return [];
  const [a, b] = data.runs;
  const [box, more] = grid(items, (one) => tile(one, labelIn(a, one) >= 0 ? labelIn(a, one) : labelIn(b, one), null, caption(one)), 18);
  box.id = id;
  return [el('h3', {}, `${title} (${count(items.length)})`), words ? el('p', { class: 'hint' }, words) : null, box, more].filter(Boolean);
}

function correctedParts(a, b) {
  const [before, after] = [corrections(a), corrections(b)];
  const changed = [...new Set([...before.keys(), ...after.keys()])].filter((id) => before.get(id) !== after.get(id));
  return section('Corrected from A to B', '', 'corrected', changed.sort((x, y) => x - y),
    (id) => `${before.get(id) ?? 'as it came'} → ${after.get(id) ?? 'as it came'}`);
}

// Labels that look wrong in one run and right in the other, each by the best that the run knows.
function doubtParts(a, b) {
  const suspects = [a, b].map((r) => new Set(suspectRows(r, r.scores.best).map((row) => r.scores.id[row])));
  const shared = a.scores.id.filter((id) => scoreRow.get(b.name).has(id));
  if (!shared.length) return [];
  const cleared = shared.filter((id) => suspects[0].has(id) && !suspects[1].has(id));
  const doubted = shared.filter((id) => !suspects[0].has(id) && suspects[1].has(id));
  const by = `In A by ${a.scores.best}, in B by ${b.scores.best}; of the ${count(shared.length)} examples here that both trained on.`;
  return [
    el('p', { class: 'lead', id: 'doubts' }, `${plural(cleared.length, 'label')} that looked wrong in A ${cleared.length === 1 ? 'looks' : 'look'} right in B, ` +
      `and ${count(doubted.length)} the other way round.`),
    ...section('Looked wrong in A, look right in B', by, 'cleared', cleared, () => 'wrong → right'),
    ...section('Looked right in A, look wrong in B', by, 'doubted', doubted, () => 'right → wrong'),
  ];
}

function scoreTable(a, b, title) {
  const line = (words, value) => el('tr', {}, el('th', { scope: 'row' }, words), [a, b].map((r) => el('td', {}, value(r))));
  const score = (scenario, key, show) => (r) => (r.scenarios[scenario] ? show(r.scenarios[scenario][key]) : '–');
  return el('table', {},
    el('thead', {}, el('tr', {}, el('td', {}), [a, b].map((r, number) => el('th', { scope: 'col' }, title(r, number))))),
    el('tbody', {},
      line('Right at the end, any class', score('class_il', 'A_inf', percent)),
      line('Right at the end, task given', score('task_il', 'A_inf', percent)),
      line('Change by later tasks, any class', score('class_il', 'BWT', points100)),
      line('Verified examples', (r) => count(r.trusted.length)),
      line('Labels that look wrong', (r) => (r.scores.id.length ? count(r.scores.ways[r.scores.best].expected) : '–')),
      SIDES.map((side) => line(SIDE_WORDS[side], (r) => (r.measurements ? count(r.sides[side]) : '–')))));
}

function changeTable(found) {
  const number = (from, to) => found.filter((pair) => pair[2] === from && pair[3] === to).length;
  return el('table', { class: 'changes' },
    el('thead', {}, el('tr', {}, el('td', {}, 'A ↓   B →'), SIDES.map((side) => el('th', { scope: 'col' }, SIDE_WORDS[side])))),
    el('tbody', {}, SIDES.map((from) => el('tr', {},
      el('th', { scope: 'row' }, SIDE_WORDS[from]),
      SIDES.map((to) => {
        const n = number(from, to);
        const on = state.change && state.change[0] === from && state.change[1] === to;
        const button = el('button', {
          type: 'button', 'aria-pressed': String(Boolean(on)), data: { from, to },
          'aria-label': `${n}: ${SIDE_WORDS[from]} in A, ${SIDE_WORDS[to]} in B`,
        }, count(n));
        button.addEventListener('click', () => {
          state.change = on ? null : [from, to];
          refresh();
        });
        return el('td', { class: from === to ? 'same' : '' }, button);
      })))));
}

function drawSideBySide(boxes, found, chosen) {
  const picked = new Set(chosen.map((pair) => pair[0]));
  boxes.forEach((box, number) => {
    const points = data.runs[number].points;
    const rows = found.map((pair) => pair[number]);
    const groups = [
      ['rest', found.filter((pair) => !picked.has(pair[0]))],
      ['chosen', found.filter((pair) => picked.has(pair[0]))],
    ];
    const option = mapOption(points, rows, [], {
      points, x: reach(points.stability, rows), y: reach(points.plasticity, rows),
    });
    option.series = groups.map(([name, members]) => ({
      type: 'scatter', large: true, largeThreshold: 1, progressive: 0,
      symbolSize: name === 'chosen' ? 6 : 4,
      itemStyle: { color: name === 'chosen' ? css('--accent') : css('--pale') },
      data: members.map((pair) => [
        bend(help(points.stability[pair[number]])), bend(help(points.plasticity[pair[number]])), pair[number],
      ]),
    }));
    draw(box, option, `Map of run ${letter(number)}: ${chosen.length} of ${found.length} measurements marked.`);
  });
}
