"use strict";
// Draws the model: one canvas, a lane below the other, and a list of what is
// where for the tooltip.

const left = 136, right = 10;
const canvas = document.getElementById("canvas"), ctx = canvas.getContext("2d"), tip = document.getElementById("tip"), hair = document.getElementById("hair");
window.addEventListener("error", e => { document.documentElement.dataset.error = e.message + " at " + e.lineno; });

const began = performance.now(), written = document.getElementById("history").textContent;
const records = JSON.parse(written), model = understand(records);
let view = { from: 0, to: model.last }, lanes = [], hits = [], colours = {}, width = 0, marked = null;

const x = t => left + (t - view.from) / (view.to - view.from) * (width - left - right);
const timeAt = px => view.from + (px - left) / (width - left - right) * (view.to - view.from);
const workerColour = slot => `hsl(${(slot * 137.5 + 160) % 360} 45% ${matchMedia("(prefers-color-scheme: dark)").matches ? 55 : 62}%)`;

// box draws a shape as a rectangle and remembers where it is.
function box(s, y, height, { least = 1, fill = colours[s.colour], alpha = 1 } = {}) {
  if (s.to < view.from || s.from > view.to) return null;
  const x0 = Math.max(x(s.from), left), w = Math.max(Math.min(x(s.to), width - right) - x0, least);
  ctx.globalAlpha = alpha;
  ctx.fillStyle = fill;
  ctx.fillRect(x0, y, w, height);
  ctx.globalAlpha = 1;
  hits.push({ x0, x1: x0 + w, y0: y, y1: y + height, tip: s.tip });
  return { x0, w };
}

function hatch(s, y, height) {
  const drawn = box(s, y, height, { alpha: 0.25 });
  if (!drawn) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(drawn.x0, y, drawn.w, height);
  ctx.clip();
  ctx.strokeStyle = colours[s.colour];
  ctx.beginPath();
  for (let at = drawn.x0 - height; at < drawn.x0 + drawn.w; at += 5) ctx.moveTo(at, y + height), ctx.lineTo(at + height, y);
  ctx.stroke();
  ctx.restore();
}

// badgesAt draws faults as letters. Where they would cover each other, those
// that find no room are ticks.
function badgesAt(shapes, y) {
  let free = left;
  for (const s of shapes) {
    if (s.from < view.from || s.from > view.to) continue;
    const roomy = x(s.from) >= free;
    if (roomy) free = x(s.from) + 13;
    (roomy ? badge : tick)(s, y);
  }
}

function tick(s, y) {
  ctx.fillStyle = colours[s.badge[2]];
  ctx.fillRect(x(s.from) - 1, y + 7, 2, 5);
  hits.push({ x0: x(s.from) - 1, x1: x(s.from) + 1, y0: y + 7, y1: y + 12, tip: s.tip });
}

function badge(s, y) {
  const [, letter, colour] = s.badge, at = x(s.from), r = 6.5;
  ctx.fillStyle = colours[colour];
  ctx.beginPath();
  ctx.arc(at, y, r, 0, 2 * Math.PI);
  ctx.fill();
  text(letter, at, y + 0.5, { colour: colours.paper, align: "center", font: "bold 9px system-ui, sans-serif" });
  hits.push({ x0: at - r, x1: at + r, y0: y - r, y1: y + r, tip: s.tip });
}

function text(what, at, y, { colour = colours.faint, align = "left", font = "11px system-ui, sans-serif" } = {}) {
  ctx.fillStyle = colour;
  ctx.font = font;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.fillText(what, at, y);
}

// curve draws values over time, from least to most, into a strip.
function curve(points, most, y, height, colour, least = 0) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, y - 1, width - left - right, height + 2);
  ctx.clip();
  ctx.beginPath();
  for (const [t, v] of points) ctx.lineTo(x(t), y + height - (v - least) / ((most - least) || 1) * height);
  ctx.strokeStyle = colours[colour];
  ctx.lineWidth = 1.5;
  ctx.stroke();
  ctx.restore();
}

// progress draws a consumer's checkpoint, the head of the log, and what lies
// between them, as high as the part that is seen needs.
function progress(name, y, height) {
  const after = model.samples.findIndex(r => r.at > view.from), until = model.samples.findIndex(r => r.at > view.to);
  const seen = model.samples.slice(Math.max(0, after - 1), until < 0 ? undefined : until + 1);
  if (after < 0 || !seen.length) return;
  const head = seen.map(r => [r.at, r.about.head]), at = seen.map(r => [r.at, r.stands[name] || 0]);
  const least = Math.min(...at.map(p => p[1])), most = Math.max(...head.map(p => p[1]));
  const level = v => y + height - (v - least) / ((most - least) || 1) * height;
  ctx.beginPath();
  for (const [t, v] of head) ctx.lineTo(x(t), level(v));
  for (const [t, v] of at.toReversed()) ctx.lineTo(x(t), level(v));
  ctx.globalAlpha = 0.2;
  ctx.fillStyle = colours.line;
  ctx.fill();
  ctx.globalAlpha = 1;
  curve(head, most, y, height, "head", least);
  curve(at, most, y, height, "line", least);
}

// pack puts shapes into rows in which they do not overlap, a few rows at most.
function pack(shapes, rows) {
  const taken = [], packed = [];
  let dropped = 0;
  for (const s of shapes) {
    let row = taken.findIndex(t => t.every(o => o.to <= s.from || o.from >= s.to));
    if (row < 0) row = taken.length < rows ? taken.push([]) - 1 : -1;
    if (row < 0) { dropped++; continue; }
    taken[row].push(s);
    packed.push({ s, row });
  }
  return { packed, dropped, rows: taken.length };
}

function axis(y, bottom, below) {
  const span = view.to - view.from, rough = span / 12, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough);
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    ctx.fillStyle = colours.rule;
    ctx.fillRect(x(t), y, 1, bottom - y);
    if (x(t) > width - 40) continue;
    text(+t.toFixed(6) + " s", x(t) + 3, y - 8);
    text(+t.toFixed(6) + " s", x(t) + 3, bottom + below);
  }
}

function draw() {
  const style = getComputedStyle(document.documentElement), ratio = window.devicePixelRatio || 1;
  for (const name of ["paper", "ink", "faint", "rule", "band", "committed", "overtaken", "failed", "rolledback", "prepared", "open", "late", "void", "line", "head", "life", "leader", "badge"])
    colours[name] = style.getPropertyValue("--" + name).trim();
  width = canvas.clientWidth;
  const top = 22, height = top + lanes.reduce((sum, l) => sum + l.height, 0) + 18;
  canvas.style.height = height + "px";
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  hits = [];
  let y = top;
  lanes.forEach((lane, i) => {
    lane.y = y;
    ctx.fillStyle = i % 2 ? colours.paper : colours.band;
    ctx.fillRect(0, y, width, lane.height);
    y += lane.height;
  });
  for (const s of model.outages) {
    ctx.globalAlpha = 0.12;
    ctx.fillStyle = colours.failed;
    ctx.fillRect(Math.max(left, x(s.from)), top, Math.max(0, Math.min(x(s.to), width - right) - Math.max(left, x(s.from))), y - top);
    ctx.globalAlpha = 1;
  }
  axis(top, y, 9);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left - 7, 0, width - left, height);
  ctx.clip();
  lanes.forEach(lane => lane.draw(lane.y));
  line(marked, "late", top - 14, y);
  ctx.restore();
  if (model.over > view.from && model.over < view.to) {
    ctx.fillStyle = colours.failed;
    ctx.fillRect(x(model.over), top - 14, 1.5, y - top + 14);
    const says = "faults end: all must come to rest", wide = ctx.measureText(says).width + 8;
    const at = Math.min(x(model.over) + 1.5, width - wide);
    ctx.fillStyle = colours.paper;
    ctx.fillRect(at, top - 16, wide, 15);
    text(says, at + 4, top - 8, { colour: colours.failed });
  }
}

// line marks a moment in all lanes.
function line(t, colour, y, bottom) {
  if (t === null || t < view.from || t > view.to) return;
  ctx.fillStyle = colours[colour];
  ctx.fillRect(x(t) - 0.75, y, 1.5, bottom - y);
}

function label() {
  const labels = document.getElementById("labels");
  for (const lane of lanes) {
    const div = document.createElement("div"), name = document.createElement("b"), sub = document.createElement("small");
    div.className = "lane";
    div.style.cssText = `top:${lane.y + 2}px; height:${lane.height - 2}px`;
    name.textContent = lane.title;
    if (lane.swatch) name.style.color = lane.swatch;
    sub.textContent = lane.sub;
    div.append(name, sub);
    labels.append(div);
  }
}

function legend() {
  const item = (what, colour, letter) => {
    const span = document.createElement("span"), mark = document.createElement("i");
    mark.style.background = `var(--${colour})`;
    if (letter) mark.className = "badge", mark.textContent = letter, mark.style.color = "var(--paper)";
    span.append(mark, what);
    document.getElementById("legend").append(span);
  };
  [["batch or transaction committed", "committed"], ["batch failed, is tried again", "failed"], ["batch overtaken by another worker, did nothing", "overtaken"],
    ["late events delivered", "late"], ["transaction rolled back, or position void", "rolledback"], ["prepared transaction", "prepared"],
    ["checkpoint, lag", "line"], ["head of the log", "head"], ["leader", "leader"]].forEach(i => item(...i));
  const seen = new Set(model.faults.map(f => f.badge));
  for (const [, letter, colour, what] of seen) item(what, colour, letter);
}

// point shows what is under the pointer: the latest drawn, which is on top.
function point(e) {
  const at = canvas.getBoundingClientRect(), px = e.clientX - at.left, py = e.clientY - at.top, near = 2;
  hair.hidden = px < left;
  hair.style.left = px + "px";
  const hit = hits.findLast(h => px >= h.x0 - near && px <= h.x1 + near && py >= h.y0 && py <= h.y1);
  tip.hidden = !hit;
  if (!hit) return;
  const [title, ...rest] = hit.tip.filter(Boolean), head = document.createElement("b");
  head.textContent = title;
  tip.replaceChildren(head, rest.join("\n"));
  tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}

// look shows a part of the run, a millisecond at least.
function look(from, to) {
  const span = Math.min(Math.max(to - from, 0.001), model.last);
  view.from = Math.max(0, Math.min(from, model.last - span));
  view.to = view.from + span;
  tip.hidden = true;
  draw();
}

// scale shows more or less around a time, which stays where it is.
function scale(by, around) { look(around - (around - view.from) * by, around + (view.to - around) * by); }

function move(by) { look(view.from + by * (view.to - view.from), view.to + by * (view.to - view.from)); }

function keys() {
  const middle = () => (view.from + view.to) / 2;
  const does = { "+": () => scale(0.5, middle()), "=": () => scale(0.5, middle()), "-": () => scale(2, middle()),
    ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), 0: () => look(0, model.last), Escape: () => look(0, model.last) };
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey || !does[e.key]) return;
    e.preventDefault();
    does[e.key]();
  });
  canvas.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.shiftKey) return; // the page scrolls
    e.preventDefault();
    if (e.ctrlKey) scale(e.deltaY > 0 ? 1.25 : 0.8, timeAt(e.offsetX));
    else move(Math.sign(e.deltaY || e.deltaX) * 0.1);
  }, { passive: false });
}

// references lead from what is said of a broken invariant to its records.
function references() {
  for (const said of document.querySelectorAll("tr.BROKEN li")) {
    const [, before, numbers] = said.textContent.match(/^([^]*\(history: )([\d, ]+)\)$/) || [];
    if (!numbers) continue;
    said.textContent = before;
    numbers.split(", ").forEach((n, i) => {
      const a = document.createElement("a");
      a.textContent = n;
      a.href = "#chart";
      a.addEventListener("click", () => {
        marked = records[n - 1].at;
        look(marked - 0.5, marked + 0.5);
      });
      said.append(i ? ", " : "", a);
    });
    said.append(")");
  }
}

function zoom() {
  let began = null;
  canvas.addEventListener("mousedown", e => { began = e.offsetX; });
  canvas.addEventListener("mouseup", e => {
    const [a, b] = [began, e.offsetX].sort((p, q) => p - q);
    if (began !== null && b - a > 5) look(Math.max(view.from, timeAt(a)), Math.min(view.to, timeAt(b)));
    began = null;
  });
  canvas.addEventListener("mousemove", e => {
    if (began === null) return point(e);
    draw();
    ctx.fillStyle = colours.line;
    ctx.globalAlpha = 0.2;
    ctx.fillRect(began, 0, e.offsetX - began, canvas.clientHeight);
    ctx.globalAlpha = 1;
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = hair.hidden = true; });
  canvas.addEventListener("dblclick", () => look(0, model.last));
}

const slots = Array.from({ length: model.header.workers }, (_, i) => i + 1);
lanes = [lagLane(), ...serverLane(), ...slots.map(workerLane), ...model.header.consumers.map(name => (isSplit(name) ? partsLane : consumerLane)(name)), densityLane(), writersLane(), waitsLane(), gapsLane()];
draw();
label();
legend();
zoom();
keys();
references();
document.getElementById("size").textContent = `${records.length.toLocaleString("en")} records, ${(written.length / 1e6).toFixed(1)} MB; read and drawn in ${((performance.now() - began) / 1000).toFixed(2)} s.`;
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.documentElement.dataset.drawn = JSON.stringify({
  lanes: lanes.map(l => l.title), batches: model.batches.length, transactions: model.transactions.length,
  gaps: model.gaps.length, faults: model.faults.length, lives: model.lives.length, ownerships: model.ownerships.length,
});
