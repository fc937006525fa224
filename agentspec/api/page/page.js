// Shows /v1/state and asks for it again every few seconds while somebody looks.
"use strict";

const REFRESH_MILLISECONDS = 2000;
const BARS = 60;
const SOURCES = ["repository", "edit", "request", "prediction", "format", "syntax", "eagle3"];
const KEY_NAME = "agentspec-key";
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (part, all) => (all ? `${((100 * part) / all).toFixed(part < all ? 1 : 0)} %` : "–");
const ratio = (part, all) => (all ? (part / all).toFixed(2) : "–");
const sum = (values) => values.reduce((total, value) => total + value, 0);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function row(cells) {
  const made = element("tr");
  for (const [content, className] of cells) {
    const cell = element("td", content instanceof Node ? undefined : content, className);
    if (content instanceof Node) cell.append(content);
    made.append(cell);
  }
  return made;
}

function fill(table, rows) {
  byId(table).tBodies[0].replaceChildren(...rows);
  byId(table).hidden = rows.length === 0;
  const empty = byId(`${table}-empty`);
  if (empty) empty.hidden = rows.length > 0;
}

/** Tokens by source; what no draft gave, the model drew itself. */
function tokens(span) {
  const counts = {};
  for (const [source, count] of Object.entries(span.accepted)) {
    const name = SOURCES.includes(source) ? source : "other";
    counts[name] = (counts[name] || 0) + count;
  }
  counts.target = Math.max(0, span.completion_tokens - sum(Object.values(span.accepted)));
  return counts;
}

function total(history) {
  const all = { completion_tokens: 0, verify_steps: 0, prompt_tokens: 0, cached_tokens: 0, accepted: {}, drafted: {} };
  for (const span of history) {
    for (const [name, value] of Object.entries(span)) {
      if (typeof value === "object") {
        for (const [source, count] of Object.entries(value)) all[name][source] = (all[name][source] || 0) + count;
      } else if (name in all) all[name] += value;
    }
  }
  return all;
}

function showTiles(state, all) {
  const accepted = sum(Object.values(all.accepted));
  const engine = state.engine;
  const tiles = [
    ["running", whole(engine.running)],
    ["waiting", whole(engine.waiting)],
    ["tokens per step", ratio(all.completion_tokens, all.verify_steps)],
    ["tokens from drafts", percent(accepted, all.completion_tokens)],
    ["prompt from cache", percent(all.cached_tokens, all.prompt_tokens)],
    ["KV slots in use", percent(engine.kv_tokens_used, engine.kv_tokens_total)],
  ];
  byId("tiles").replaceChildren(
    ...tiles.map(([name, value]) => {
      const tile = element("div");
      tile.append(element("dt", name), element("dd", value));
      return tile;
    }),
  );
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** One stacked bar for each minute of the last hour. */
function showChart(state) {
  const seconds = 3600 / BARS;
  const first = Math.floor(state.time / seconds) - BARS + 1;
  const bars = Array.from({ length: BARS }, () => ({}));
  for (const span of state.history) {
    const bar = bars[Math.floor(span.begin / seconds) - first];
    if (!bar) continue;
    for (const [source, count] of Object.entries(tokens(span))) bar[source] = (bar[source] || 0) + count;
  }
  const most = Math.max(...bars.map((bar) => sum(Object.values(bar))));
  byId("chart").hidden = most === 0;
  byId("chart-empty").hidden = most > 0;
  byId("span-length").textContent = most > 0 ? "Each bar is a minute." : "";
  if (most === 0) return;
  const [width, height, left, bottom, top] = [Math.max(320, byId("chart").clientWidth), 176, 48, 20, 10];
  const step = (width - left) / BARS;
  const scale = (height - bottom - top) / most;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(shape("title", {}, `Tokens of each minute by source; at most ${whole(most)}. The table below has the sums.`));
  for (const part of [0, 0.5, 1]) {
    const y = height - bottom - part * most * scale;
    svg.append(shape("line", { x1: left, x2: width, y1: y, y2: y }));
    svg.append(shape("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, whole(part * most)));
  }
  bars.forEach((bar, index) => {
    const column = shape("g", {});
    let y = height - bottom;
    for (const source of [...SOURCES, "other", "target"]) {
      if (!bar[source]) continue;
      const size = bar[source] * scale;
      y -= size;
      const place = { x: left + index * step + 1, y, width: Math.max(1, step - 2), height: size, class: source };
      column.append(shape("rect", place));
    }
    const said = Object.entries(bar).map(([source, count]) => `${source} ${whole(count)}`);
    column.append(shape("title", {}, said.join(", ")));
    svg.append(column);
  });
  for (const minutes of width < 560 ? [60, 30, 0] : [60, 45, 30, 15, 0]) {
    const x = left + ((60 - minutes) / 60) * (width - left);
    const anchor = minutes === 60 ? "start" : minutes === 0 ? "end" : "middle";
    svg.append(shape("text", { x, y: height - 4, "text-anchor": anchor }, minutes ? `${minutes} min ago` : "now"));
  }
  byId("chart").replaceChildren(svg);
}

function showSources(all) {
  const counts = tokens(all);
  const known = new Set([...Object.keys(all.drafted), ...Object.keys(all.accepted)]);
  const rows = [...known].sort((a, b) => (all.accepted[b] || 0) - (all.accepted[a] || 0));
  const shown = rows.map((source) => [source, all.accepted[source] || 0, all.drafted[source] || 0]);
  if (all.completion_tokens) shown.push(["target", counts.target, null]);
  fill(
    "sources",
    shown.map(([source, accepted, drafted]) => {
      const name = element("span");
      name.append(element("span", "", `swatch ${SOURCES.includes(source) || source === "target" ? source : "other"}`));
      name.append(source === "target" ? "the model itself" : source);
      return row([
        [name],
        [whole(accepted), "number"],
        [percent(accepted, all.completion_tokens), "number"],
        [drafted === null ? "" : whole(drafted), "number"],
        [drafted === null ? "" : percent(accepted, drafted), "number"],
      ]);
    }),
  );
}

function showRepositories(repositories) {
  fill(
    "repositories",
    repositories.map((repository) => {
      const { files_done: done, files_total: all } = repository.progress;
      const busy = repository.state === "indexing" || repository.state === "queued";
      const state = element("span", busy ? undefined : repository.error || repository.state);
      if (busy) {
        const bar = element("progress");
        if (all) [bar.max, bar.value] = [all, done];
        state.append(bar, repository.state);
      }
      return row([
        [repository.path, "path"],
        [state, repository.state === "failed" ? "failed" : ""],
        [all ? `${whole(done)} of ${whole(all)}` : "–", "number"],
      ]);
    }),
  );
}

function ago(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

function showReceipts(state) {
  fill(
    "receipts",
    state.receipts.map(({ ended, finish_reason: reason, receipt }) => {
      const seconds = receipt.prefill_seconds + receipt.draft_seconds + receipt.verify_seconds;
      const accepted = Object.entries(receipt.accepted).filter(([, count]) => count > 0);
      const drafts = receipt.speculation ? accepted.map(([source, count]) => `${source} ${whole(count)}`).join(", ") || "none" : "off";
      const made = row([
        [ago(state.time - ended)],
        [reason, receipt.warnings.length ? "warned" : ""],
        [whole(receipt.prompt_tokens), "number"],
        [whole(receipt.cached_tokens), "number"],
        [whole(receipt.completion_tokens), "number"],
        [whole(receipt.verify_steps), "number"],
        [receipt.tokens_per_step.toFixed(2), "number"],
        [seconds.toFixed(2), "number"],
        [drafts, "drafts"],
      ]);
      made.title = receipt.warnings.join("\n");
      return made;
    }),
  );
}

function showStatus(state, text) {
  byId("status").dataset.state = state;
  byId("status").textContent = text;
}

function show(state) {
  const all = total(state.history);
  byId("model").textContent = state.model
    ? `${state.model} · ${whole(state.context_length)} tokens of context · ${state.engine.kind} engine`
    : `${state.engine.kind} engine`;
  byId("version").textContent = `agentspec ${state.version}`;
  if (state.engine.ready) showStatus("ready", "ready");
  else showStatus("waiting", "the engine is starting");
  byId("content").hidden = false;
  showTiles(state, all);
  showChart(state);
  showSources(all);
  showRepositories(state.repositories);
  showReceipts(state);
}

function askForKey(refused) {
  const asked = !byId("key").hidden;
  sessionStorage.removeItem(KEY_NAME);
  byId("key").hidden = false;
  byId("content").hidden = true;
  byId("links").hidden = true;
  byId("key-error").textContent = refused ? "The server does not know this key." : "";
  showStatus("waiting", "locked");
  if (!asked) byId("key-field").focus();
}

async function refresh() {
  const key = sessionStorage.getItem(KEY_NAME);
  let message = "";
  try {
    const answer = await fetch("v1/state", { headers: key ? { authorization: `Bearer ${key}` } : {} });
    if (answer.status === 401) {
      askForKey(key !== null);
      return false;
    }
    if (!answer.ok) throw new Error(`it answered ${answer.status}`);
    byId("key").hidden = true;
    byId("links").hidden = key !== null; // a browser follows links without the key
    shown = await answer.json();
    show(shown);
  } catch (error) {
    message = `The server cannot be reached (${error.message}). Trying again; what is shown below is old.`;
    showStatus("gone", "unreachable");
  }
  byId("error").textContent = message;
  byId("error").hidden = message === "";
  return true;
}

let timer;
let shown;

async function run() {
  clearTimeout(timer);
  if (document.hidden) return;
  if (await refresh()) timer = setTimeout(run, REFRESH_MILLISECONDS);
}

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY_NAME, byId("key-field").value);
  byId("key-field").value = "";
  run();
});
window.addEventListener("resize", () => shown && showChart(shown));
document.addEventListener("visibilitychange", run);
run();
