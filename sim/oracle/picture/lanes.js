"use strict";
// The lanes: each has a title, a height, and draws itself from a height on, with
// what draw.js offers.

function lagLane() {
  const most = Math.max(1, ...model.samples.map(r => r.about.lag));
  return { title: "lag", sub: `of the last consumer, up to ${most} positions`, height: 54, draw(y) {
    curve(model.samples.map(r => [r.at, r.about.lag]), most, y + 3, 46, "line");
    for (const r of model.samples) if (r.at >= view.from && r.at <= view.to)
      hits.push({ x0: x(r.at) - 2, x1: x(r.at) + 2, y0: y, y1: y + 52, tip: [`lag ${r.about.lag} positions`, "of the consumer furthest behind", `head ${r.about.head} at ${seconds(r.at)}`] });
  } };
}

function workerLane(slot) {
  const of = shapes => shapes.filter(s => s.slot === slot);
  const marks = of(model.faults).filter(f => !f.consumer);
  return { title: "worker " + slot, sub: plural(of(model.lives).length, "life").replace("lifes", "lives") + ", " + plural(marks.length, "fault"), swatch: workerColour(slot), height: 30, draw(y) {
    for (const s of of(model.lives)) {
      const drawn = box(s, y + 6, 16);
      if (drawn && drawn.w > 60) text(s.name.replace("worker ", ""), drawn.x0 + 4, y + 15);
    }
    of(model.leaderships).forEach(s => box(s, y + 20, 4, { least: 2 }));
    of(model.stalls).forEach(s => hatch(s, y + 6, 14));
    badgesAt(marks, y + 13);
  } };
}

// serverLane tells of what the workers share. Its outages show in all lanes.
function serverLane() {
  const marks = model.faults.filter(f => !f.slot && !f.consumer);
  return marks.length ? [{ title: "server", sub: plural(marks.length, "fault"), height: 32, draw(y) {
    for (const s of model.outages) box(s, y + 7, 14, { least: 2, alpha: 0.35 });
    badgesAt(marks, y + 13);
  } }] : [];
}

function consumerLane(name) {
  const of = shapes => shapes.filter(s => s.consumer === name);
  const mine = of(model.batches), order = ["committed", "overtaken", "failed"];
  mine.sort((a, b) => order.indexOf(a.colour) - order.indexOf(b.colour));
  const count = outcome => mine.filter(b => b.colour === outcome).length;
  const owned = pack(of(model.ownerships), 3);
  return { title: name, sub: `${plural(count("committed"), "batch").replace("batchs", "batches")}, ${count("failed")} failed, ${count("overtaken")} overtaken`, height: 62, draw(y) {
    for (const { s, row } of owned.packed) {
      const tall = 14 / owned.rows, drawn = box(s, y + 3 + row * tall, tall - 1, { fill: workerColour(s.slot) });
      if (drawn && drawn.w > 30 && tall > 10) text(s.name.replace("worker ", ""), drawn.x0 + 4, y + 10, { colour: "#fff" });
    }
    for (const b of mine) box(b, y + 19, 15, { least: b.colour === "committed" ? 1 : 2, alpha: b.colour === "committed" ? 0.7 : 1 });
    for (const b of mine) if (b.late) box(b, y + 31, 4, { least: 3, fill: colours.late });
    badgesAt(of(model.faults), y + 10);
    standing(name, y + 38);
  } };
}

// standing draws where a consumer stands.
function standing(name, y) {
  progress(name, y, 20);
  for (const r of model.samples) if (r.at >= view.from && r.at <= view.to)
    hits.push({ x0: x(r.at) - 2, x1: x(r.at) + 2, y0: y - 1, y1: y + 22, tip: [`${name} stands at ${r.stands[name] || 0}`, `head ${r.about.head} at ${seconds(r.at)}`] });
}

const isSplit = name => model.rescales.some(r => r.consumer === name);

// partsLane shows a consumer in partitions: from top to bottom its keys, and over
// time which worker has a unit of them.
function partsLane(name) {
  const of = shapes => shapes.filter(s => unitOf(s.consumer).consumer === name);
  const all = 120, splits = of(model.rescales).filter(r => r.split).length, merges = of(model.rescales).length - splits;
  const place = (y, u, rim) => [y + 3 + u.first * all + rim, Math.max(1, (u.end - u.first) * all - 1 - 2 * rim)];
  return { title: name, sub: `its keys from top to bottom, in units of a worker each: ${plural(splits, "split")}, ${plural(merges, "merge")}; below, its last unit`, height: all + 34, draw(y) {
    for (const s of of(model.ownerships)) box(s, ...place(y, unitOf(s.consumer), 0), { fill: workerColour(s.slot), alpha: 0.45 });
    for (const b of of(model.batches)) box(b, ...place(y, unitOf(b.consumer), 3), { least: b.colour === "committed" ? 1 : 2, alpha: b.colour === "committed" ? 0.7 : 1 });
    for (const r of of(model.rescales)) box(r, ...place(y, r, 0), { least: 2 });
    badgesAt(of(model.faults), y + 10);
    standing(name, y + all + 10);
  } };
}

// densityLane counts the ends of transactions in each few pixels.
function densityLane() {
  const outcomes = ["committed", "prepared", "rolledback"];
  return { title: "transactions", sub: "of all writers, by when they ended", height: 56, draw(y) {
    const step = 4, bins = Array.from({ length: Math.ceil((width - left - right) / step) }, () => ({}));
    for (const t of model.transactions) {
      const bin = bins[Math.floor((x(t.to) - left) / step)];
      if (bin && t.to <= view.to && t.n) bin[t.colour] = (bin[t.colour] || 0) + 1;
    }
    const most = Math.max(1, ...bins.map(b => outcomes.reduce((n, o) => n + (b[o] || 0), 0)));
    bins.forEach((bin, i) => {
      let base = y + 52;
      const from = timeAt(left + i * step), to = timeAt(left + (i + 1) * step);
      const says = [`${seconds(from)} to ${seconds(to)}`, ...outcomes.map(o => `${bin[o] || 0} ${o.replace("rolledback", "rolled back").replace("prepared", "prepared, and decided since")}`)];
      for (const o of outcomes) {
        const tall = (bin[o] || 0) / most * 48;
        base -= tall;
        ctx.fillStyle = colours[o];
        ctx.fillRect(left + i * step, base, step - 0.5, tall);
      }
      hits.push({ x0: left + i * step, x1: left + (i + 1) * step, y0: y, y1: y + 52, tip: says });
    });
  } };
}

function writersLane() {
  const writers = model.header.writers, tall = Math.max(2, Math.min(8, 170 / writers));
  return { title: "writers", sub: "a row each; transactions too short to be seen here show when you look closer", height: writers * tall + 8, draw(y) {
    for (const t of model.transactions) {
      const n = +t.who.replace("writer ", ""), alpha = t.colour === "committed" ? 0.65 : 1;
      if (!n || x(t.to) - x(t.from) < 3) continue;
      const row = y + 4 + (n - 1) * tall;
      if (!t.prepared) box(t, row, tall - 1, { alpha });
      else box({ ...t, to: t.prepared }, row, tall - 1), box({ ...t, from: t.prepared }, row + tall / 3, Math.max(1, tall / 3));
    }
  } };
}

function gapsLane() {
  const doubts = model.gaps.filter(g => !g.tick), ticks = model.gaps.filter(g => g.tick), most = Math.max(0, ...model.inDoubt.map(([, n]) => n));
  const rows = 20, many = doubts.length ? 34 : 4, bars = doubts.length ? rows * 5 + 14 : 0;
  return { title: "gaps", sub: `${plural(doubts.length, "range")} passed in doubt, at most ${most} at a time (the line), each from opening to closing (the bars); below, ${ticks.length} passed as void`, height: Math.max(70, many + bars + 22), draw(y) {
    for (const s of ticks) box(s, y + many + bars + 4, 12, { least: 1, alpha: 0.6 });
    if (!doubts.length) return;
    curve(model.inDoubt, most, y + 4, many - 6, "late");
    const shown = pack(doubts.filter(g => g.to >= view.from && g.from <= view.to), rows);
    for (const { s, row } of shown.packed) box(s, y + many + row * 5, 4, { least: 3 });
    if (shown.dropped) text(`${shown.dropped} more do not fit: drag to look closer`, left + 4, y + many + rows * 5 + 6);
  } };
}

function waitsLane() {
  const packed = pack(model.waits, 8);
  return { title: "waiting", sub: "for transactions that stay open too long", height: Math.max(22, packed.rows * 6 + 10), draw(y) {
    for (const { s, row } of packed.packed) box(s, y + 5 + row * 6, 5, { least: 3 });
  } };
}
