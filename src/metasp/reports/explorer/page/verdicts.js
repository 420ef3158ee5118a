// What a person says of examples: kept in the browser, undone in order, saved as a file.
const served = JSON.parse(byId('served').textContent);
const isId = (value) => Number.isSafeInteger(value) && value >= 0;
const storageKey = (name) => `metasp/verified/${name}/${data.runs.find((r) => r.name === name).stamp}`;
const desks = new Map(data.runs.map((r) => [r.name, newDesk(r.name)]));
const desk = () => desks.get(run().name);

// `said` maps an id to its class, or to null: the label is wrong, and nobody knows what it is.
function newDesk(name) {
  const file = served?.runs[name] ?? null;
  const kept = keptIn(storageKey(name));
  const version = file ? file.version : '';
  const pairs = file ? [...file.saved] : [];
  if (kept && kept.version === version) pairs.length = 0; // the browser knows all that the file does
  if (kept) pairs.push(...kept.said);
  return {
    said: new Map(pairs),
    skipped: new Set(kept ? kept.skipped : []),
    past: kept ? kept.past : [],
    version,
    target: kept ? kept.target : data.sure,
    unsaved: Boolean(kept?.unsaved),
  };
}

// What the browser holds, if it is what we wrote; it may lack storage, or hold something else.
function keptIn(key) {
  try {
    const found = JSON.parse(localStorage.getItem(key));
    const verdict = (pair) => isId(pair[0]) && (pair[1] === null || (data.numbers ? Number.isFinite(pair[1]) : isId(pair[1])));
    const sound = found.said.every(verdict) && found.skipped.every(isId) && Array.isArray(found.past) &&
      found.past.every((step) => isId(step.id)) && isId(found.target);
    return sound ? found : null;
  } catch {
    return null;
  }
}

function keepDesk() {
  const { said, skipped, past, version, target, unsaved } = desk();
  const kept = { said: [...said], skipped: [...skipped], past: past.slice(-500), version, target, unsaved };
  try {
    localStorage.setItem(storageKey(run().name), JSON.stringify(kept));
  } catch {
    // A page opened from disk may not be allowed to: the verdicts then last until it is closed.
  }
}

const stateOf = (id) => ({ id, label: desk().said.get(id), skipped: desk().skipped.has(id) });

function setState({ id, label, skipped }) {
  if (label === undefined) desk().said.delete(id);
  else desk().said.set(id, label);
  desk().skipped[skipped ? 'add' : 'delete'](id);
  desk().unsaved = true;
}

// A class, null for wrong, undefined for no verdict.
function decide(id, label, skipped = false, group = null) {
  desk().past.push({ ...stateOf(id), group });
  setState({ id, label, skipped });
  keepDesk();
}

// Takes the last verdict back, or all that were given at once; gives its id, or null.
function undo() {
  const { past } = desk();
  const before = past.pop();
  if (!before) return null;
  setState(before);
  while (before.group && past.at(-1)?.group === before.group) setState(past.pop());
  keepDesk();
  return before.id;
}

function verdictWords(id) {
  if (!desk().said.has(id)) return '';
  const label = desk().said.get(id);
  if (label === null) return 'wrong label';
  return label === labelOf(id) ? 'right' : `is ${className(label)}`;
}

// Names as the files know them: where nobody knows the names, a class is its number.
const nameInFile = (label) => (!data.numbers && label < data.classes.length ? data.classes[label] : String(label));

function verifiedCsv() {
  const rows = [...desk().said].sort((a, b) => a[0] - b[0]).map(([id, label]) =>
    [id, label === null ? null : nameInFile(label), !data.numbers && labelOf(id) < 0 ? null : nameInFile(labelOf(id))]);
  return [['id', 'label', 'was'], ...rows].map((line) => line.map(cell).join(',')).join('\r\n') + '\r\n';
}

function cell(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  // A spreadsheet takes a text that begins so for a formula: a class name must not run.
  const safe = /^'*[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  const link = el('a', { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// All examples of this page with what is thought of their labels, as `metasp suspects --cleaned`.
function cleanedCsv() {
  const suspects = new Set(suspectRows());
  const rows = run().scores.id.map((id, row) => {
    const [label, guess, said] = [labelOf(id), predictedOf(id), desk().said.get(id)];
    const suspect = suspects.has(row);
    const clean = said !== undefined ? said : suspect ? (guess === label ? null : guess) : label;
    const verdict = said === null ? 'wrong' : said !== undefined ? 'verified' : suspect ? 'suspect' : 'ok';
    return [id, origins.get(id) ?? null, nameInFile(label), verdict, clean === null ? null : nameInFile(clean)];
  });
  return [['id', 'file', 'label', 'verdict', 'clean_label'], ...rows].map((line) => line.map(cell).join(',')).join('\r\n') + '\r\n';
}

function downloadVerified() {
  download('verified.csv', verifiedCsv());
  if (!served) desk().unsaved = false;
  keepDesk();
  say(`Saved ${plural(desk().said.size, 'verdict')}.`);
  refresh();
}

// To the server that the page came from, which writes the file beside the run.
async function saveVerified() {
  const own = desk();
  const said = [...own.said];
  let words;
  try {
    const answer = await fetch('/verified', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'X-Metasp-Token': served.token },
      body: JSON.stringify({ run: run().name, version: own.version, verdicts: said }),
    });
    if (answer.ok) {
      own.version = (await answer.json()).version;
      own.unsaved = own.said.size !== said.length;
      keepDesk();
      words = `Saved ${plural(said.length, 'verdict')} in ${served.runs[run().name].file}.`;
    } else {
      words = `Not saved: ${await answer.text()}`;
    }
  } catch {
    words = 'Not saved: the server is gone. Start `metasp explore --serve` again, or take the file with you.';
  }
  own.words = words;
  say(words);
  refresh();
}

function saveButtons() {
  const n = desk().said.size;
  const off = !n && !desk().unsaved;
  const take = el('button', { type: 'button', class: served ? 'quiet' : 'primary', id: 'download', disabled: off, on: { click: downloadVerified } },
    served ? 'Download' : `Save ${plural(n, 'verdict')} as verified.csv`);
  if (!served) return [take];
  return [el('button', { type: 'button', class: 'primary', id: 'save', disabled: off, on: { click: saveVerified } },
    `Save ${plural(n, 'verdict')} beside the run`), take];
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

// Nothing is started from here: a person runs the commands, knowing what they are. Plain replay
// without the suspects is best on most data (benchmarks/corrected.txt); where most labels of a class
// are wrong, the method that judges all labels by verified examples is.
function commands() {
  const verified = desk().said.size ? ` --verified ${quoted(served ? served.runs[run().name].file : 'verified.csv')}` : '';
  const by = (method) => (run().method === method ? run().again : run().again.replace(' --spec ', ` --method ${method} --spec `));
  const judged = verified && !data.numbers && !run().method.includes(' + ');
  return [
    ['Leave out the labels that look wrong; your verdicts count more:', `metasp suspects ${quoted(run().folder)} --format csv > suspects.csv`],
    ['', `${by('er')} --exclude suspects.csv${verified}`],
    ...(judged ? [['Or, where most labels of a class are wrong, judge all labels by your verdicts:', `${by('metasp-robust')}${verified}`]] : []),
    ['Then see what changed, with the folder that it prints:', `metasp explore ${quoted(run().folder)} NEW_RUN`],
  ];
}
