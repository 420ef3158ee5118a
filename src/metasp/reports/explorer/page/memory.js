// The memory through time: what it holds after each task, what entered and what left.
function renderMemory(panel) {
  const steps = run().memory;
  const intro =
    'The memory is fixed in size: for a new example to enter, an old one has to leave. Here is ' +
    'what it held at the end of each task, and what the exchange cost or gained.';
  if (!steps.some((step) => step.held || step.left.length)) {
    const words = steps.length ? `The method “${run().method}” keeps no examples of past tasks.` : 'No task is finished yet.';
    return panel.replaceChildren(...heading('The memory through time'), empty('Nothing in memory', words));
  }
  if (!steps.some((step) => step.task === state.memoryTask)) state.memoryTask = steps[steps.length - 1].task;
  const labels = [...new Set(steps.flatMap((step) => Object.keys(step.classes).map(Number)))].sort((a, b) => a - b);
  const box = el('div', { class: 'chart', id: 'memory-chart' });
  const chosen = steps.find((step) => step.task === state.memoryTask);
  const before = chosen.task ? `between the ends of task ${chosen.task} and task ${chosen.task + 1}` : 'during task 1';
  panel.replaceChildren(
    ...heading('The memory through time', intro),
    box,
    legend(labels.map((label) => ({ key: label, words: className(label), colour: classColour(label) }))),
    el('div', { class: 'tools' },
      choice('After task', 'memoryTask', steps.map((step) => [step.task, `After task ${step.task + 1}`]), refresh)),
    el('p', { class: 'lead', id: 'memory-words' },
      `${plural(chosen.held, 'example')} held: ${count(chosen.entered.length)} entered and ` +
      `${count(chosen.left.length)} left ${before}, ${count(chosen.stayed)} stayed.${gain(chosen)}`),
    ...exchange('Entered', 'entered', chosen.entered, 'Nothing entered.'),
    ...exchange('Left', 'left', chosen.left, chosen.task ? 'Nothing left.' : 'The memory was empty before.'),
  );
  draw(
    box,
    {
      grid: { left: 44, right: 12, top: 16, bottom: 30 },
      xAxis: axis({ type: 'category', data: steps.map((step) => `after task ${step.task + 1}`) }),
      yAxis: axis({ type: 'value', minInterval: 1 }),
      tooltip: tooltip({
        formatter: (event) => lines(event.seriesName, `${plural(event.value, 'example')} ${event.name}`),
      }),
      series: labels.map((label) => ({
        name: className(label), type: 'bar', stack: 'held', barMaxWidth: 72,
        itemStyle: { color: classColour(label), borderColor: css('--card'), borderWidth: 1 },
        data: steps.map((step) => step.classes[label] || 0),
      })),
    },
    `Examples in memory by class: ${steps.map((step) => `after task ${step.task + 1}, ${step.held}`).join('; ')}.`,
  ).on('click', (event) => {
    state.memoryTask = steps[event.dataIndex].task;
    refresh();
  });
}

function gain(step) {
  const mean = (entries) => {
    const known = entries.filter((entry) => entry[2] !== null).map((entry) => entry[2]);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };
  const [came, went] = [mean(step.entered), mean(step.left)];
  if (came === null || went === null) return '';
  return ` On average what entered measured ${short(help(came))}, what left ${short(help(went))} (above 0 helps).`;
}

function exchange(title, name, entries, none) {
  const head = el('h3', {}, `${title} (${count(entries.length)})`);
  if (!entries.length) return [head, el('p', { class: 'hint' }, none)];
  const [box, more] = grid(entries, ([id, label, value]) => tile(id, label, value, ''), 36);
  box.id = name;
  return [head, box, more];
}
