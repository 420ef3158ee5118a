// The gallery: the same examples as pictures, the ends of the order first.
const ENDS = 18;

function sortedRows(rows, measure) {
  const values = run().points[measure];
  return [...rows].sort((a, b) => values[a] - values[b] || a - b);
}

function galleryTile(row) {
  const points = run().points;
  const parts = [points.memory[row] ? 'memory' : 'new'];
  if (state.task === 'all') parts.unshift(`task ${points.task[row] + 1}`);
  if (points.kept[row]) parts.push('kept');
  return tile(points.id[row], points.label[row], points[state.measure][row], parts.join(' · '), { row });
}

function renderGallery(panel) {
  if (!measured()) return renderPlainGallery(panel);
  const tools = el(
    'div',
    { class: 'tools' },
    choice('Influence on', 'measure', Object.entries(MEASURES).map(([key, words]) =>
      [key, words[0].toUpperCase() + words.slice(1)]), refresh),
    choice('Order', 'order', [['ends', 'Both ends'], ['helpful', 'Most helpful first'],
      ['harmful', 'Most harmful first']], refresh),
  );
  const intro =
    'Examples sorted by their influence. ▲ lowers the loss on what the model should know: it helps. ' +
    `▼ raises it: it hurts. ${goalWords()} Click one for all about it.`;
  const rows = sortedRows(filtered(), state.measure);
  if (!rows.length) return panel.replaceChildren(...heading('The gallery', intro), tools, nothingLeft());
  const what = { fused: 'both together', stability: 'remembering', plasticity: 'learning' }[state.measure];
  const parts = [];
  if (state.order === 'ends') {
    const few = Math.min(ENDS, Math.ceil(rows.length / 2));
    parts.push(
      el('h3', { class: 'helps' }, `Help most (${what})`),
      el('div', { class: 'grid', id: 'top' }, rows.slice(0, few).map(galleryTile)),
      el('h3', { class: 'hurts' }, `${allHelp(rows) ? 'Help least' : 'Hurt most'} (${what})`),
      el('div', { class: 'grid', id: 'bottom' }, rows.slice(few).slice(-few).reverse().map(galleryTile)),
    );
  } else {
    const ordered = state.order === 'helpful' ? rows : rows.reverse();
    const [box, more] = grid(ordered, galleryTile, 96);
    box.id = 'all';
    parts.push(box, more);
  }
  panel.replaceChildren(...heading('The gallery', intro), tools, ...parts);
}

function allHelp(rows) {
  return run().points[state.measure][rows[rows.length - 1]] < 0;
}

// What there is without influences: every example that was scored, or the memory.
function renderPlainGallery(panel) {
  const { scores } = run();
  const rows = scores.id.length ? scores.ways[suspectWay()].order : [];
  if (!rows.length) return panel.replaceChildren(...heading('The gallery'), empty('Nothing to show yet', 'No task of this run is finished, or its method does not say how its examples fare.'));
  const [box, more] = grid(rows, (row) => {
    const predicted = predictedOf(scores.id[row]);
    return tile(scores.id[row], scores.label[row], null, predicted === null || predicted === labelOf(scores.id[row]) ? `task ${scores.task[row] + 1}` : `model: ${className(predicted)}`);
  }, 96);
  box.id = 'all';
  panel.replaceChildren(...heading('The gallery'), noInfluences(), box, more);
}
