// The map: influence on remembering against influence on learning, one point per example.
const hiddenKeys = new Set();
let zoom = null;
let mapBox = null;

const bend = (value) =>
  state.scale === 'spread' ? Math.sign(value) * Math.sqrt(Math.abs(value)) : value;
const unbend = (value) =>
  state.scale === 'spread' ? Math.sign(value) * value * value : value;

function groupsOf(points, rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = state.colour === 'class' ? points.label[row] : state.colour === 'side'
      ? sideAt(points, row) : points.kept[row];
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
}

function groupLook(key) {
  if (state.colour === 'class') return { words: className(key), colour: classColour(key) };
  if (state.colour === 'side') return { words: SIDE_WORDS[key], colour: sideColour(key) };
  return key
    ? { words: 'Kept in memory', colour: css('--accent') }
    : { words: 'Not kept', colour: css('--pale') };
}

function reach(values, rows) {
  let most = 0;
  for (const row of rows) most = Math.max(most, Math.abs(values[row]));
  return (bend(most) || 1) * 1.06;
}

function renderMap(panel) {
  if (!measured()) return panel.replaceChildren(...heading('The map'), noInfluences());
  const points = run().points;
  const rows = filtered();
  const tools = el(
    'div',
    { class: 'tools' },
    choice('Colour by', 'colour', [...(data.numbers ? [] : [['class', 'Class']]), ['kept', 'Kept'], ['side', 'Side']], () => {
      hiddenKeys.clear();
      refresh();
    }),
    choice('Scale', 'scale', [['spread', 'Spread out'], ['true', 'True scale']], () => {
      zoom = null;
      refresh();
    }),
    el(
      'div',
      { class: 'switch', role: 'group', 'aria-label': 'Zoom' },
      el('button', { type: 'button', 'aria-label': 'Zoom in', on: { click: () => zoomBy(0.7) } }, '+'),
      el('button', { type: 'button', 'aria-label': 'Zoom out', on: { click: () => zoomBy(1 / 0.7) } }, '−'),
      el('button', { type: 'button', on: { click: () => moveView(0, 0, null) } }, 'Whole map'),
    ),
  );
  const intro =
    'Each point is an example of the task. To the right: it helps the model remember old tasks. ' +
    `Up: it helps it learn the new one. Hover for the picture, click for all about it. ${goalWords()}`;
  if (!rows.length) {
    return panel.replaceChildren(...heading('The map', intro), tools, nothingLeft());
  }
  const frame = el('div', { class: 'map-frame' });
  mapBox = el('div', { id: 'map', class: 'map', tabindex: '0', on: { keydown: mapKeys } });
  frame.append(mapBox, ...SIDES.map((side) => el('span', { class: `corner ${side}` }, SIDE_WORDS[side])));
  const groups = groupsOf(points, rows);
  const keys = groups.map(([key]) => ({ key, off: hiddenKeys.has(key), ...groupLook(key) }));
  tools.prepend(...heading('The map'));
  panel.replaceChildren(
    tools,
    frame,
    el('p', { class: 'intro' }, intro),
    legend(keys, (key) => {
      if (!hiddenKeys.delete(key)) hiddenKeys.add(key);
      refresh();
    }),
    el('p', { class: 'hint' }, 'Drag to move; Ctrl and wheel, pinch, or the buttons to zoom. ' +
      'With the keyboard: arrows, + and −, 0 for the whole map. The gallery shows the same examples as a list.'),
  );
  fitMap();
  const chart = draw(mapBox, mapOption(points, rows, groups), mapWords(points, rows));
  chart.on('click', (event) => event.value && openDetail(points.id[event.value[2]]));
  chart.on('datazoom', () => {
    zoom = chart.getOption().dataZoom.map(({ start, end }) => ({ start, end }));
    placeCorners();
  });
  placeCorners();
}

// All of the map is seen without scrolling, on a screen that is not too low for one.
function fitMap() {
  if (!mapBox?.isConnected || innerWidth <= 520) return;
  const top = mapBox.getBoundingClientRect().top + scrollY;
  mapBox.style.height = `${Math.round(Math.max(300, Math.min(640, innerHeight - top - 16)))}px`;
}
addEventListener('resize', fitMap);

function mapOption(points, rows, groups, extra = {}) {
  const x = extra.x || reach(points.stability, rows);
  const y = extra.y || reach(points.plasticity, rows);
  const narrow = mapBox && mapBox.clientWidth < 500;
  // Below 4 pixels the library fills plain squares, which is twice as fast as circles.
  const size = rows.length > 4000 ? 3.9 : rows.length > 1000 ? 6 : 8;
  const scale = (name, most) =>
    axis({
      type: 'value', min: -most, max: most, name, nameLocation: 'middle', nameGap: 30,
      splitNumber: narrow ? 4 : 8,
      axisLine: { onZero: true, lineStyle: { color: css('--soft') } },
      axisLabel: { color: css('--soft'), hideOverlap: true, showMinLabel: false, showMaxLabel: false, formatter: (v) => (v ? short(unbend(v)) : '0') },
    });
  const inside = (axisName, at) => ({
    type: 'inside', [axisName]: 0, filterMode: 'none', zoomOnMouseWheel: 'ctrl', moveOnMouseMove: true,
    minSpan: 0.5, throttle: 0, ...((zoom && !extra.x && zoom[at]) || { start: 0, end: 100 }),
  });
  return {
    grid: { left: 72, right: 16, top: 16, bottom: 52, outerBoundsMode: 'none' },
    xAxis: scale('hurts ←  remembering  → helps', x),
    yAxis: { ...scale('hurts ←  learning  → helps', y), nameGap: 50, nameRotate: 90 },
    tooltip: tooltip({
      trigger: 'item',
      formatter: (event) => (event.value ? tip(extra.points || points, event.value[2]) : ''),
    }),
    dataZoom: [inside('xAxisIndex', 0), inside('yAxisIndex', 1)],
    series: groups
      .filter(([key]) => !hiddenKeys.has(key))
      .map(([key, members]) => ({
        name: groupLook(key).words,
        type: 'scatter',
        // All points of a series are one path: ten thousand move as smoothly as a hundred.
        large: true,
        largeThreshold: 1,
        progressive: 0,
        symbolSize: size,
        itemStyle: { color: groupLook(key).colour },
        data: members.map((row) => [
          bend(help(points.stability[row])), bend(help(points.plasticity[row])), row,
        ]),
      })),
  };
}

function mapWords(points, rows) {
  const found = Object.fromEntries(SIDES.map((side) => [side, 0]));
  for (const row of rows) found[sideAt(points, row)] += 1;
  return `Map of ${rowsWords(rows.length)}: ` +
    SIDES.map((side) => `${SIDE_WORDS[side].toLowerCase()} ${count(found[side])}`).join(', ') + '.';
}

// The corner labels name what is in view: a side that is panned away loses its label.
function placeCorners() {
  const [x, y] = zoom || [{ start: 0, end: 100 }, { start: 0, end: 100 }];
  const seen = {
    both: x.end > 50 && y.end > 50, remembering: x.end > 50 && y.start < 50,
    learning: x.start < 50 && y.end > 50, neither: x.start < 50 && y.start < 50,
  };
  for (const side of SIDES) {
    const corner = mapBox.parentElement.querySelector(`.corner.${side}`);
    if (corner) corner.hidden = !seen[side];
  }
}

function moveView(dx, dy, factor) {
  const chart = charts.get(mapBox);
  if (!chart) return;
  const at = chart.getOption().dataZoom;
  const moved = at.map(({ start, end }, number) => {
    if (factor === null) return { dataZoomIndex: number, start: 0, end: 100 };
    const half = Math.min(50, ((end - start) / 2) * factor);
    const shift = (number === 0 ? dx : dy) * half;
    const middle = Math.min(100 - half, Math.max(half, (start + end) / 2 + shift));
    return { dataZoomIndex: number, start: middle - half, end: middle + half };
  });
  chart.dispatchAction({ type: 'dataZoom', batch: moved });
}

const zoomBy = (factor) => moveView(0, 0, factor);

function mapKeys(event) {
  const moves = {
    ArrowLeft: [-0.3, 0, 1], ArrowRight: [0.3, 0, 1], ArrowUp: [0, 0.3, 1], ArrowDown: [0, -0.3, 1],
    '+': [0, 0, 0.7], '=': [0, 0, 0.7], '-': [0, 0, 1 / 0.7], 0: [0, 0, null],
  };
  if (!(event.key in moves) || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  moveView(...moves[event.key]);
}

function nothingLeft() {
  const clear = el('button', { type: 'button', on: { click: () => clearFilters() } }, 'Show all examples');
  return empty('No example fits these filters', 'Loosen one of them, or start over.', clear);
}
