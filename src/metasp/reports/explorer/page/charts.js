// What all charts share: colours of the page's scheme, size that follows the window.
const PALETTE = ['#3b78c9', '#e08a1e', '#2f9e6e', '#cf4446', '#8b62c4', '#9a6a4f', '#d666a9',
  '#7d8794', '#a8a51f', '#21a3b5', '#5b4fd0', '#7cb342'];
const charts = new Map();

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const sideColour = (side) => css(`--${side}`);

function classColour(label) {
  if (data.classes.length <= PALETTE.length && label < PALETTE.length) return PALETTE[label];
  return `hsl(${(label * 137.5) % 360}, 60%, ${label % 2 ? 45 : 58}%)`;
}

// A chart in an element; the one it had before is dropped, as its element is.
function draw(box, option, words) {
  for (const [other, chart] of charts) {
    if (!other.isConnected) {
      chart.dispose();
      charts.delete(other);
    }
  }
  let chart = charts.get(box);
  if (!chart) {
    chart = echarts.init(box, null, { renderer: 'canvas' });
    charts.set(box, chart);
    new ResizeObserver(() => chart.isDisposed() || chart.resize()).observe(box);
  }
  box.setAttribute('role', 'img');
  box.setAttribute('aria-label', words);
  chart.setOption({ animation: false, textStyle: { fontFamily: css('--font') }, ...option }, true);
  return chart;
}

function tooltip(extra) {
  return {
    confine: true,
    transitionDuration: 0,
    backgroundColor: css('--card'),
    borderColor: css('--line'),
    textStyle: { color: css('--ink'), fontSize: 13 },
    ...extra,
  };
}

function axis(extra) {
  return {
    axisLine: { lineStyle: { color: css('--line') } },
    axisTick: { show: false },
    axisLabel: { color: css('--soft') },
    nameTextStyle: { color: css('--soft'), fontSize: 13 },
    splitLine: { lineStyle: { color: css('--faint') } },
    ...extra,
  };
}

// Lines of text for a tooltip, as text.
function lines(...texts) {
  return el('div', {}, texts.map((text) => el('div', {}, text)));
}

function legend(entries, toggle) {
  return el(
    'ul',
    { class: 'legend' },
    entries.map(({ key, words, colour, off }) => {
      const swatch = el('i', {});
      swatch.style.background = colour;
      if (!toggle) return el('li', {}, el('span', {}, swatch, words));
      const button = el('button', { type: 'button', 'aria-pressed': String(!off) }, swatch, words);
      button.addEventListener('click', () => toggle(key));
      return el('li', {}, button);
    }),
  );
}
