"use strict";
const MOST_S = 600;      // that curves show, and that a death is told of on top
const WAITS_FROM = 0.05; // as in frame.py
const HEIGHT = 132;
const $ = id => document.getElementById(id);

function el(tag, cls, ...children) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  made.append(...children.filter(one => one !== undefined && one !== ""));
  return made;
}
function mark(made, name, value) {
  made.dataset.v = name;
  made.dataset.exact = value;
  return made;
}
// Changes only what differs: a selection, and what moves, go on.
function patch(old, now) {
  if (old.isEqualNode(now)) return;
  if (old.nodeName !== now.nodeName) { old.replaceWith(now); return; }
  if (old.nodeType === Node.TEXT_NODE) { old.data = now.data; return; }
  for (const name of old.getAttributeNames()) if (!now.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  fill(old, [...now.childNodes]);
}
function fill(box, children) {
  while (box.childNodes.length > children.length) box.lastChild.remove();
  children.forEach((one, i) => box.childNodes[i] ? patch(box.childNodes[i], one) : box.append(one));
}

// -- numbers ------------------------------------------------------------------------------------

function count(x) {
  if (x === null || x === undefined) return "–";
  if (x >= 1e9) return (x / 1e9).toFixed(2) + " G";
  if (x >= 1e6) return (x / 1e6).toFixed(2) + " M";
  if (x >= 1e4) return (x / 1e3).toFixed(1) + " k";
  return x >= 10 || x === Math.round(x) ? Math.round(x).toLocaleString("en") : x.toFixed(1);
}
function bytes(x) {
  if (x === null || x === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (x >= 1024 && units.length > 1) { x /= 1024; units.shift(); }
  return (x < 10 && units[0] !== "B" ? x.toFixed(1) : Math.round(x)) + " " + units[0];
}
function time(s) {
  if (s === null || s === undefined) return "–";
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
}
const share = x => Math.round(100 * x) + "\u00a0%";
const plural = (n, what) => n + " " + what + (n === 1 ? "" : "s");
const few = names => names.slice(0, 3).join(", ") + (names.length > 3 ? " and " + (names.length - 3) + " more" : "");
const clock = age_s => new Date(Date.now() - 1000 * age_s).toLocaleTimeString("en-GB");

// -- actors, tables, learners ---------------------------------------------------------------------

const place = c => c.host + ":" + c.pid;
const label = c => c.name || place(c);
const same = c => label(c) + " " + place(c);
const byName = (a, b) => label(a).localeCompare(label(b), "en", { numeric: true });
function members(title, list, n, wait) {
  const waits = n > 0 && wait >= WAITS_FROM;
  return el("div", "card" + (waits ? " waits" : ""), el("h2", "", title), el("div", "big num", String(n)),
    el("div", "soft", few([...new Set(list.sort(byName).map(label))])),
    waits ? el("div", "amber", "wait " + share(wait) + " of the time") : "");
}
function arrow(cls, what, perSecond, wait) {
  const held = wait >= WAITS_FROM;
  const made = el("div", "arrow " + cls + (held ? " held" : perSecond > 0 ? " flows" : ""),
    el("div", "num", count(perSecond) + " " + what), el("div", "pipe"),
    held ? el("div", "amber", "held back " + share(wait)) : "");
  made.style.setProperty("--pace", Math.max(0.2, 1.2 - Math.round(Math.log10(1 + perSecond)) / 5) + "s");
  return made;
}
function policy(table, name, lag) {
  const said = lag.lag === undefined ? "steps carry versions of " + name + ", of which there are no weights yet"
    : lag.lag === 0 ? "◀ " + name + ": all actors act with the newest weights"
    : "◀ " + name + ": the actor furthest behind acts with weights " + plural(lag.lag, "version") + " old";
  const batch = lag.batch_lag === undefined ? "" : "; its last batch had rows " + plural(lag.batch_lag, "version") + " old";
  return mark(el("div", "back num", said + batch), table + ".lag." + name, lag.lag ?? "");
}
function tableRow(name, t, clients) {
  const bar = el("i"), stale = Object.values(t.stale).reduce((a, b) => a + b, 0);
  bar.style.width = (t.full ? 100 : t.capacity ? Math.min(100, 100 * t.size / t.capacity) : 0).toFixed(1) + "%";
  const card = el("div", "card", el("h2", "", "table"), el("b", "", name), t.full ? el("span", "badge", "full") : "",
    el("div", "num", mark(el("span", "big", count(t.size)), name + ".size", t.size),
      el("span", "soft", (t.capacity ? " of " + count(t.capacity) : "") + " steps")),
    el("div", "gauge", bar),
    el("div", "soft num", mark(el("span", "", count(t.samples_per_insert) + " samples per insert"),
      name + ".samples_per_insert", t.samples_per_insert), " · " + bytes(t.nbytes)),
    t.queued_rows ? el("div", "amber num", count(t.queued_rows) + " rows queued for " + time(t.queue_age_s)) : "",
    stale ? el("div", "soft num", count(stale) + " stale") : "");
  return el("div", "row",
    members("actors (writers)", clients.filter(c => c.writers), t.writers, t.writers_wait),
    arrow("in", "steps/s", t.inserts_per_s, t.writers_wait), card,
    arrow("out", "samples/s", t.samples_per_s, t.readers_wait),
    members("learners (readers)", clients.filter(c => c.readers), Math.ceil(t.readers / (t.shards || 1)), t.readers_wait),
    ...Object.entries(t.policies).map(([key, lag]) => policy(name, key, lag)));
}

// -- curves ---------------------------------------------------------------------------------------

const WHOLE = [...Array(12).keys()].flatMap(i => [1, 2, 5].map(one => one * 10 ** i));
const CURVES = [
  { title: "in", unit: "steps/s", lines: [["in", "inserts_per_s", "--in"]] },
  { title: "out", unit: "samples/s", lines: [["out", "samples_per_s", "--out"]] },
  { title: "waiting", unit: "% of the time", short: "%", most: 100,
    lines: [["actors", "writers_percent", "--in"], ["learners", "readers_percent", "--out"]] },
  { title: "kept", unit: "steps", incrs: WHOLE, lines: [["size", "size", "--in"]] },
  { title: "policy lag", unit: "versions", incrs: WHOLE, lines: [["furthest behind", "lag", "--out"]] },
];
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ago = s => s === 0 ? "now" : s % 60 ? "−" + -s + " s" : "−" + s / -60 + " min";
let points = [], incarnation = null, deaths = [], plots = new Map(), roles = new Map();

function plotOf(figure, curve) {
  const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false },
    font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif" };
  const box = el("div", "plot");
  figure.append(box);
  const plot = new uPlot({
    width: 300, height: HEIGHT, padding: [8, 14, 0, 0], legend: { show: false },
    scales: { x: { time: false, range: (u, min) => [Math.min(min, -10), 0] },
      y: { range: (u, min, max) => [0, curve.most || 1.08 * max || 1] } },
    axes: [
      { ...axis, size: 22, gap: 4, space: 48, incrs: [1, 2, 5, 10, 30, 60, 120, 300], values: (u, all) => all.map(ago) },
      { ...axis, size: 48, gap: 4, space: 26, incrs: curve.incrs, label: curve.unit, labelSize: 15, labelGap: 0,
        values: (u, all) => all.map(x => count(x).replace(/\.0+ /, " ")) },
    ],
    series: [{}, ...curve.lines.map(([, , name]) => ({ stroke: () => colour(name), width: 1.8, points: { show: false } }))],
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "all" },
      points: { size: 7, fill: (u, i) => colour(curve.lines[i - 1][2]), stroke: () => colour("--card") } },
    hooks: { setCursor: [u => caption(figure, curve, u)], draw: [drawDeaths] },
  }, [[], ...curve.lines.map(() => [])], box);
  new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
  box.tabIndex = 0;
  box.setAttribute("role", "img");
  box.onkeydown = event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const x = plot.data[0], last = x.length - 1, i = Math.max(0, Math.min(last, (plot.cursor.idx ?? last) + step));
    plot.setCursor({ left: plot.valToPos(x[i], "x"), top: 0 }, true, true);
  };
  box.onblur = () => plot.setCursor({ left: -10, top: -10 }, true, true);
  return plot;
}
// An amber line at the time of each death.
function drawDeaths(u) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = colour("--wait");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const age of deaths) {
    if (-age < u.scales.x.min) continue;
    const x = Math.round(u.valToPos(-age, "x", true));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
// The values under the pointer, or the newest ones.
function caption(figure, curve, u) {
  const at = u.cursor.idx ?? u.data[0].length - 1, age = -u.data[0][at];
  const said = curve.lines.flatMap(([name, , tone], i) => {
    if (!u.series[i + 1].show) return [];
    const swatch = el("i");
    swatch.style.background = `var(${tone})`;
    const exact = u.data[i + 1][at], unit = curve.short || curve.unit;
    const value = count(exact) + "\u00a0" + (exact === 1 ? unit.replace(/^(\w+)s\b/, "$1") : unit);
    return [el("span", "num", swatch, (curve.lines.length > 1 ? name + " " : "") + value)];
  });
  const when = u.cursor.idx === null || u.cursor.idx === undefined ? "" : clock(age);
  patch(figure.firstChild, el("figcaption", "", el("b", "", figure.dataset.title), when && el("span", "soft num", when), ...said));
  figure.lastChild.setAttribute("aria-label",
    `${figure.dataset.title}: ${said.map(one => one.textContent).join(", ")} ${when || "now"}`);
}
function curves(f) {
  const x = points.map(p => p.at - points.at(-1).at), names = Object.keys(f.tables), shown = new Set();
  for (const name of names) for (const curve of CURVES) {
    const key = name + "\n" + curve.title, data = curve.lines.map(([, of]) => points.map(p => p.tables[name]?.[of] ?? null));
    if (!data.some(line => line.some(Boolean))) continue;  // it would be empty
    shown.add(key);
    if (!plots.has(key)) {
      const figure = el("figure", "card", el("figcaption"));
      figure.dataset.title = (names.length > 1 ? name + ": " : "") + curve.title;
      plots.set(key, { figure, curve, plot: plotOf(figure, curve) });
    }
    const { figure, plot } = plots.get(key);
    plot.batch(() => {
      data.forEach((line, i) => {
        const show = line.some(Boolean);
        if (plot.series[i + 1].show !== show) plot.setSeries(i + 1, { show });
      });
      plot.setData([x, ...data]);
    });
    caption(figure, curve, plot);
  }
  for (const [key, { plot }] of plots) if (!shown.has(key)) { plot.destroy(); plots.delete(key); }
  const order = names.flatMap(name => CURVES.map(curve => plots.get(name + "\n" + curve.title)?.figure)).filter(Boolean);
  const box = $("curves");
  box.className = order.length ? "curves" : "";
  if (order.length !== box.children.length || order.some((one, i) => one !== box.children[i])) box.replaceChildren(...order);
}
matchMedia("(prefers-color-scheme: dark)").onchange = () => plots.forEach(one => one.plot.redraw());

// -- clients and shards ---------------------------------------------------------------------------

// Those of the list that have died, and those that it has no more; of the latter not what lives again.
function deadOf(f) {
  const known = new Set(f.sessions.map(same));
  const gone = f.sessions_died.filter(c => c.role !== "watcher").sort((a, b) => a.silent_s - b.silent_s);
  return [...f.sessions.filter(c => c.state === "died"),
    ...gone.filter(c => !known.has(same(c)) && known.add(same(c))).slice(0, 16)];
}
// One whose only shard is away is still what it was.
function setRoles(sessions) {
  for (const c of sessions) {
    if (c.writers && c.readers) c.role = "actor, learner";
    else if (c.role === "evaluator" || c.role === "other") c.role = roles.get(same(c)) ?? c.role;
  }
  roles = new Map(sessions.map(c => [same(c), c.role]));
}
const deathOf = c => (c.state === "lost" ? "lost" : "died") + " " + clock(c.silent_s);
function clientRow(c, dead) {
  const rate = [c.writers && count(c.rows_per_s) + " rows/s", c.readers && count(c.batches_per_s) + " batches/s"];
  const notes = [c.in_flight_bytes && bytes(c.in_flight_bytes) + " held back", c.lag && plural(c.lag, "version") + " behind"];
  const shards = Object.keys(c.shards || {});
  return el("tr", dead ? "gone" : "",
    el("td", "", label(c), c.name ? el("span", "soft place", " " + place(c)) : "", shards.length ? el("span", "soft", " → " + few(shards)) : ""),
    el("td", "", c.role),
    dead ? el("td", "amber", deathOf(c))
      : el("td", c.state === "silent" ? "red" : "", [c.state, ...notes.filter(Boolean)].join(", ")),
    el("td", "num", dead ? "" : rate.filter(Boolean).join(", ")),
    el("td", "num wide", time(c.silent_s) + " ago"));
}
function clients(f, dead) {
  const gone = Object.entries(f.sessions_ended).filter(one => one[1]).map(([how, n]) => n + " " + how);
  $("clientsummary").textContent = plural(f.sessions_open, "client") + (gone.length ? ", and before: " + gone.join(", ") : "");
  const order = { silent: 0, connected: 1, left: 2 };
  const worst = (a, b) => order[a.state] - order[b.state] || b.in_flight_bytes - a.in_flight_bytes
    || (b.lag ?? 0) - (a.lag ?? 0) || byName(a, b);
  const alive = f.sessions.filter(c => c.state !== "died").sort(worst).map(c => clientRow(c, false));
  const [late, old] = [true, false].map(new_ => dead.filter(c => c.silent_s < MOST_S === new_).map(c => clientRow(c, true)));
  fill($("clients"), [...late, ...alive, ...old]);
}
function shardRow(s) {
  const tables = Object.values(s.tables), full = tables.length > 0 && tables.every(t => t.full);
  const most = key => Math.max(0, ...tables.map(t => t[key]));
  const waits = [["learners ", most("readers_wait")], ["actors ", most("writers_wait")]]
    .filter(one => one[1] >= WAITS_FROM).map(([who, wait]) => who + share(wait));
  const number = (key, format, cls = "") => {
    const sum = tables.reduce((all, t) => all + (t[key] ?? 0), 0);
    return mark(el("td", "num " + cls, s.state === "silent" ? "–" : format(sum)), s.name + "." + key, sum);
  };
  const why = el("td", waits.length ? "amber" : "", waits.join(", "));
  why.title = tables.flatMap(t => t.waiting).join("\n");
  return el("tr", "", el("td", "", s.name),
    mark(el("td", { silent: "red", draining: "amber" }[s.state] || "", s.state + (full ? ", full" : "")), s.name + ".state", s.state),
    el("td", "soft wide", s.address), number("size", count), number("inserts_per_s", count), number("samples_per_s", count),
    number("writers", String), number("readers", String), number("nbytes", bytes, "wide"), why);
}

// -- the whole ------------------------------------------------------------------------------------

function say(lines) {
  fill($("headlines"), lines.map(([tone, text]) => el("div", "said " + tone, text)));
  const spoken = lines.map(one => one[1].replace(/[\d.,]+ ?(%|s\b)?/g, "")).join(". ");  // not each second anew
  if ($("spoken").dataset.said !== spoken) {
    $("spoken").dataset.said = spoken;
    $("spoken").textContent = lines.map(one => one[1]).join(". ");
  }
}
function state(text, live) {
  $("state").textContent = text;
  $("state").className = live ? "live" : "";
  $("main").className = live ? "" : "stale";
}
function show(f) {
  state(f.draining ? "draining" : "live", true);
  $("who").textContent = f.address + (f.shards.length ? "" : " · process " + f.pid) + " · up " + time(f.uptime_s);
  document.title = "async_loader · " + Object.keys(f.tables).join(", ");
  setRoles(f.sessions);
  const dead = deadOf(f), late = dead.filter(c => c.silent_s < MOST_S);
  deaths = late.map(c => c.silent_s);
  const silent = f.sessions.filter(c => c.state === "silent");
  say([
    ...(silent.length ? [["bad", few(silent.map(c => label(c) + " says nothing for " + time(c.silent_s)))]] : []),
    ...(late.length ? [["wait", few(late.map(c => `${label(c)} (${c.role}) ${deathOf(c)}, ${time(c.silent_s)} ago`))]] : []),
    ...f.headlines,
  ]);
  fill($("tables"), Object.entries(f.tables).map(([name, t]) => tableRow(name, t, f.sessions)));
  fill($("weights"), Object.entries(f.weights).map(([name, version]) => mark(el("div", "soft num",
    `weights ${name}: version ${version}, published ${time(f.weights_age_s[name])} ago`
    + (f.weights_waiting[name] ? `, ${f.weights_waiting[name]} wait for a newer one` : "")), "weights." + name, version)));
  $("shardcard").hidden = !f.shards.length;
  $("shardsummary").textContent = plural(f.shards.length, "shard") + ", " + f.shards.filter(s => s.state !== "silent").length + " answer";
  fill($("shards"), f.shards.map(shardRow));
  clients(f, dead);
}
function take(f) {
  if (f.error) {
    state("no status", false);
    return say([["bad", "The feeder gives no status: " + f.error]]);
  }
  const again = points.length && incarnation === f.incarnation && points.at(-1).t === f.uptime_s;
  if (incarnation !== f.incarnation) points = [];
  incarnation = f.incarnation;
  if (!again) {
    const at = Date.now() / 1000;
    const tables = Object.entries(f.tables).map(([name, t]) => [name, {
      ...t, writers_percent: 100 * t.writers_wait, readers_percent: 100 * t.readers_wait,
      lag: Math.max(0, ...Object.values(t.policies).map(one => one.lag || 0)),
    }]);
    points = [...points.filter(p => p.at > at - MOST_S), { at, t: f.uptime_s, tables: Object.fromEntries(tables) }];
  }
  show(f);
  if (!again) curves(f);
}
async function ask() {
  try {
    const answer = await fetch("/frame.json" + location.search);
    take(answer.ok ? await answer.json() : { error: await answer.text() });
  } catch (error) {
    console.error(error);
    state("reconnecting", false);
  }
  setTimeout(ask, 1000);
}
ask();
