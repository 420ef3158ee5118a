// How well it did: the accuracy matrix, the curves, and how many examples helped.
function renderScores(panel) {
  const scenario = run().scenarios[state.scenario];
  const switcher = choice('Scenario', 'scenario', Object.entries(SCENARIOS), refresh);
  const intro = state.scenario === 'class_il'
    ? 'The model chooses among all classes seen so far; nobody tells it the task (class-incremental).'
    : 'The model is told the task of each test example and chooses among its classes (task-incremental).';
  const single = run().tasks.length === 1 && run().finished;
  const parts = single ? heading('Scores') : [...heading('Scores', intro), el('div', { class: 'tools' }, switcher)];
  if (!scenario) return panel.replaceChildren(...parts, empty('No scores', run().finished ? 'The tasks were not tested.' : 'No task is finished.'));
  if (single) {
    parts.push(el('div', { class: 'facts' }, fact(percent(scenario.A_inf), rightWords(run()), testWords(run()))));
    return panel.replaceChildren(...parts);
  }
  const curve = el('div', { class: 'chart', id: 'curve-chart' });
  parts.push(
    el('div', { class: 'facts' },
      data.metrics.map((m) => fact((m.change ? points100 : percent)(scenario[m.key]), m.words, `${m.help} (${m.name})`))),
    el('h3', {}, 'Accuracy on each task, after each task'),
    el('div', { class: 'scroll' }, matrixTable(scenario.matrix)),
    el('h3', {}, 'Accuracy as tasks come'),
    curve,
  );
  const charts = measured() ? statisticsParts(parts) : null;
  panel.replaceChildren(...parts);
  drawCurves(curve, scenario.matrix);
  if (charts) drawStatistics(...charts);
}

// Scores on labels that nobody has verified are called so.
const rightWords = (r) => (r.given_labels ? 'agrees with the given labels of the test examples' : 'right on the test examples');
const testWords = (r) => (r.given_labels
  ? 'They were held out of the same list, and some of their labels may be wrong too: a model that is right can stay below 100 %.' : 'After the last epoch.');

function fact(value, name, words) {
  return el('div', { class: 'fact' }, el('strong', {}, value), el('span', {}, name), el('small', {}, words));
}

const taskWords = (task) => {
  const classes = (run().tasks[task]?.classes || []).map(className);
  return classes.length > 4 ? `${classes.slice(0, 3).join(', ')}, …` : classes.join(', ');
};

function matrixTable(matrix) {
  const head = el('tr', {}, el('td', {}), matrix.map((_, task) =>
    el('th', { scope: 'col' }, `on task ${task + 1}`, el('small', {}, taskWords(task)))));
  const tested = (row) => row.some((value) => value !== null);
  const body = matrix.map((row, task) => (!tested(row) ? null :
    el('tr', {}, el('th', { scope: 'row' }, `after task ${task + 1}`), row.map((value) => {
      const made = el('td', { class: 'heat' }, value === null ? '' : (100 * value).toFixed(1));
      if (value !== null) {
        made.style.backgroundColor = `color-mix(in oklab, var(--accent) ${Math.round(8 + 84 * value * value)}%, var(--card))`;
        made.classList.toggle('deep', value > 0.85);
      }
      return made;
    }))));
  return el('table', { class: 'matrix' }, el('caption', {}, 'Percent right'), el('thead', {}, head), el('tbody', {}, body));
}

const meanSeen = (matrix) =>
  matrix.map((row) => {
    const seen = row.filter((value) => value !== null);
    return !seen.length ? null : seen.reduce((a, b) => a + b, 0) / seen.length;
  });

function drawCurves(box, matrix) {
  const names = matrix.map((_, task) => `task ${task + 1}`);
  const round = (value) => (value === null ? null : +(100 * value).toFixed(2));
  const other = data.runs.length > 1 ? data.runs[1 - state.run] : null;
  const series = matrix.map((_, task) => ({
    name: `on task ${task + 1}`, type: 'line', symbolSize: 5,
    lineStyle: { width: 1.5, opacity: 0.6, color: PALETTE[task % PALETTE.length] },
    itemStyle: { color: PALETTE[task % PALETTE.length] },
    data: matrix.map((row) => round(row[task])), connectNulls: true,
  }));
  series.push({
    name: 'mean of tasks seen', type: 'line', symbolSize: 9, z: 5,
    lineStyle: { width: 4, color: css('--ink') }, itemStyle: { color: css('--ink') },
    data: meanSeen(matrix).map(round), connectNulls: true,
  });
  if (other?.scenarios[state.scenario]) {
    series.push({
      name: `mean of the other run (${other.method})`, type: 'line', symbolSize: 7, z: 4,
      lineStyle: { width: 3, type: 'dashed', color: css('--soft') }, itemStyle: { color: css('--soft') },
      data: meanSeen(other.scenarios[state.scenario].matrix).map(round), connectNulls: true,
    });
  }
  draw(box, {
    grid: { left: 44, right: 16, top: 56, bottom: 30 },
    legend: { type: 'scroll', top: 0, textStyle: { color: css('--soft') }, pageIconColor: css('--ink'), pageTextStyle: { color: css('--soft') } },
    xAxis: axis({ type: 'category', data: names.map((name) => `after ${name}`) }),
    yAxis: axis({ type: 'value', min: 0, max: 100, axisLabel: { color: css('--soft'), formatter: '{value} %' } }),
    tooltip: tooltip({ formatter: (event) => lines(event.seriesName, `${event.value} % ${event.name}`) }),
    series,
  }, `Mean accuracy of the tasks seen: ${meanSeen(matrix).filter((value) => value !== null).map(percent).join(', ')}.`);
}

function statisticsParts(parts) {
  const counts = el('div', { class: 'chart small', id: 'counts-chart' });
  const spread = el('div', { class: 'chart small', id: 'histogram-chart' });
  parts.push(
    el('h3', {}, 'How many examples help, how many hurt'),
    el('div', { class: 'tools' },
      choice('Influence on', 'measure', Object.entries(MEASURES).map(([key, words]) =>
        [key, words[0].toUpperCase() + words.slice(1)]), refresh)),
    el('div', { class: 'pair' },
      el('figure', {}, el('figcaption', {}, 'Per task: those that help point up, those that hurt point down'), counts),
      el('figure', {}, el('figcaption', {}, 'All tasks in five groups of equal width, from most harmful to most helpful'), spread)),
  );
  return [counts, spread];
}

const SOURCE_LOOKS = [['new', 'new', 1], ['memory', 'memory', 0.55]];

function drawStatistics(counts, spread) {
  const entries = run().helped.filter((entry) => entry.measure === state.measure);
  const tasks = [...new Set(entries.map((entry) => entry.task))];
  const at = (task, source, key) =>
    entries.find((entry) => entry.task === task && entry.source === source)?.[key] || 0;
  const bars = SOURCE_LOOKS.flatMap(([source, words, opacity]) =>
    [['helps', '--both', 1], ['hurts', '--neither', -1]].map(([key, colour, sign]) => ({
      name: `${words}, ${key}`, type: 'bar', stack: source, barMaxWidth: 36,
      itemStyle: { color: css(colour), opacity },
      data: tasks.map((task) => sign * at(task, source, key)),
    })));
  const low = { bottom: 0, itemWidth: 14, textStyle: { color: css('--soft') } };
  draw(counts, {
    grid: { left: 48, right: 12, top: 16, bottom: 60 },
    legend: low,
    xAxis: axis({ type: 'category', data: tasks.map((task) => `task ${task + 1}`), axisLabel: { color: css('--soft') } }),
    yAxis: axis({ type: 'value', axisLabel: { color: css('--soft'), formatter: (v) => count(Math.abs(v)) } }),
    tooltip: tooltip({ formatter: (e) => lines(`${e.name}: ${e.seriesName}`, plural(Math.abs(e.value), 'example')) }),
    series: bars,
  }, entries.map((e) => `task ${e.task + 1}, ${e.source}: ${e.helps} help, ${e.hurts} hurt`).join('; '));
  const found = SOURCE_LOOKS.map(([source, words, opacity]) =>
    [run().histograms.find((e) => e.measure === state.measure && e.source === source), words, opacity])
    .filter(([entry]) => entry);
  draw(spread, {
    grid: { left: 48, right: 12, top: 16, bottom: 60 },
    legend: low,
    xAxis: axis({ type: 'category', data: ['most harmful', '', '', '', 'most helpful'] }),
    yAxis: axis({ type: 'value', minInterval: 1 }),
    tooltip: tooltip({
      formatter: (e) => {
        const edges = [...found[e.seriesIndex][0].edges].reverse();
        const range = `${short(help(edges[e.dataIndex]))} to ${short(help(edges[e.dataIndex + 1]))}`;
        return lines(e.seriesName, `${plural(e.value, 'measurement')} from ${range}`);
      },
    }),
    series: found.map(([entry, words, opacity]) => ({
      name: words, type: 'bar', barMaxWidth: 44, itemStyle: { color: css('--accent'), opacity },
      label: { show: true, position: 'top', color: css('--soft') },
      data: [...entry.counts].reverse(),
    })),
  }, found.map(([e, words]) => `${words}: ${[...e.counts].reverse().join(', ')}`).join('; '));
}
