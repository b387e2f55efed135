"use strict";
// What the records mean: each function makes shapes of one kind. A shape has a
// time from and to, a colour's name, and what to say when it is pointed at.

const seconds = t => t.toFixed(3) + " s";
const slotOf = who => +who.replace(/^worker /, "").split(".")[0];
const plural = (n, what) => n + " " + what + (n === 1 ? "" : "s");
const spansText = spans => (spans || []).map(s => s.first === s.last ? "" + s.first : s.first + "–" + s.last).join(", ");

// unitOf takes the name of a unit apart: the consumer, and which part of the keys it
// has, from 0 to 1.
function unitOf(name) {
  const found = /^(.*)#([0-9a-f]{3})-([0-9a-f]{3})$/.exec(name || "");
  return found ? { consumer: found[1], first: parseInt(found[2], 16) / 4096, end: (parseInt(found[3], 16) + 1) / 4096 } : { consumer: name, first: 0, end: 1 };
}

// badges are how faults are marked: a letter, a colour, and what it stands for.
const badges = [
  [/far from/, "F", "late", "the server far from the worker for a while"],
  [/server|disk|all connections|primaries/, "S", "failed", "the server crashes, or lacks something"],
  [/could not start/, "0", "open", "a worker finds no server when it starts, and is started again"],
  [/worker.*(crash|killed)/, "C", "failed", "worker crashes"],
  [/half open/, "H", "failed", "its connections stay half open"],
  [/cut off/, "X", "overtaken", "connections cut"],
  [/stalled|stopped past/, "Z", "late", "worker stalls (hatched), comes back as a zombie"],
  [/stopped and started/, "R", "open", "clean restart"],
  [/backends ended/, "K", "overtaken", "a backend of the worker ended by the server"],
  [/registrations/, "U", "overtaken", "registration deleted"],
  [/assignments deleted/, "A", "overtaken", "assignment deleted"],
  [/notifications/, "N", "overtaken", "notifications lost or delayed"],
  [/handlers that/, "E", "failed", "handler fails or panics"],
  [/paused/, "P", "open", "consumer paused by an operator"],
  [/jobs whose handler/, "E", "failed", "a job is enqueued whose handler is to fail"],
  [/caps|jobs cancelled|enqueued again/, "O", "open", "operator caps a queue, cancels a job or enqueues it again"],
  [/moved away/, "M", "open", "consumer moved to another worker"],
  [/by an operator/, "O", "open", "operator sets the consumer back or forward, or skips an event"],
  [/./, "!", "badge", "other faults"],
];
const badgeOf = fault => badges.find(b => b[0].test(fault));
const ofServer = fault => badgeOf(fault)[1] === "S";

// between pairs the records that begin something with those that end it.
function between(records, begins, ends, keyOf, last) {
  const open = new Map(), all = [];
  for (const r of records) {
    const key = keyOf(r);
    if (begins(r)) {
      open.set(key, { from: r.at, to: last, begin: r });
      all.push(open.get(key));
    } else if (ends(r) && open.has(key)) {
      Object.assign(open.get(key), { to: r.at, end: r });
      open.delete(key);
    }
  }
  return all;
}

const isKind = kind => r => r.kind === kind;

function lives(records, last) {
  return between(records, isKind("worker started"), isKind("worker stopped"), r => r.who, last).map(s => ({
    ...s, slot: slotOf(s.begin.who), name: s.begin.who, colour: "life",
    tip: [s.begin.who + " runs", `from ${seconds(s.from)} to ${seconds(s.to)}`, `id: ${s.begin.about.id}`,
      s.end?.about.error && "ended with: " + s.end.about.error],
  }));
}

function leaderships(records, last) {
  const ends = r => r.kind === "leads no more" || r.kind === "worker stopped";
  return between(records, isKind("leads"), ends, r => r.who, last).map(s => ({
    ...s, slot: slotOf(s.begin.who), colour: "leader",
    tip: [s.begin.who + " is the leader: it assigns the consumers", `from ${seconds(s.from)} to ${seconds(s.to)}`],
  }));
}

function stalls(records, last) {
  const isStall = r => badgeOf(r.about.fault)[1] === "Z";
  const begins = r => r.kind === "fault" && isStall(r);
  const ends = r => r.kind === "fault over" && isStall(r) || r.kind === "worker stopped";
  return between(records, begins, ends, r => r.who, last).map(s => ({
    ...s, slot: slotOf(s.begin.who), colour: "late",
    tip: [s.begin.who + " is stalled", `from ${seconds(s.from)} to ${seconds(s.to)}`, s.begin.about.where],
  }));
}

// outages are of the server; some are over at once.
function outages(records) {
  const begins = r => r.kind === "fault" && ofServer(r.about.fault);
  const ends = r => r.kind === "fault over" && ofServer(r.about.fault);
  return between(records, begins, ends, r => r.about?.fault, 0).map(s => ({
    ...s, to: Math.max(s.from, s.to), colour: "failed",
    tip: ["server: " + s.begin.about.fault, s.to ? `from ${seconds(s.from)} to ${seconds(s.to)}` : "at " + seconds(s.from), s.begin.about.where, "record " + s.begin.n],
  }));
}

function ownerships(records, last) {
  const ended = new Map(records.filter(isKind("worker stopped")).map(r => [r.who, r.at])); // one that was killed says nothing of its consumers
  return between(records, isKind("consumer started"), isKind("consumer stopped"), r => r.who + "/" + r.consumer, last).map(s => (
    s.end ? s : { ...s, to: ended.get(s.begin.who) ?? last }
  )).map(s => ({
    ...s, consumer: s.begin.consumer, slot: slotOf(s.begin.who), name: s.begin.who,
    tip: [`${s.begin.who} owns ${s.begin.consumer}`, `from ${seconds(s.from)} to ${seconds(s.to)}`],
  }));
}

function faults(records) {
  return records.filter(isKind("fault")).map(r => ({
    from: r.at, to: r.at, who: r.who, consumer: r.consumer,
    slot: /^worker /.test(r.who || "") && !ofServer(r.about.fault) ? slotOf(r.who) : 0, badge: badgeOf(r.about.fault),
    tip: ["fault: " + r.about.fault, [r.who, r.consumer].filter(Boolean).join(", ") + " at " + seconds(r.at), r.about.where, "record " + r.n],
  }));
}

function batches(records) {
  return records.filter(isKind("batch")).map(r => {
    const b = r.about;
    return {
      from: r.at - (b.guard_ms + b.handle_ms + b.commit_ms) / 1000, to: r.at, consumer: r.consumer, colour: b.outcome, late: b.late || 0,
      tip: [`batch of ${r.consumer} on ${r.who}: ${b.outcome}`,
        plural(b.events, "event") + (b.events ? `, positions ${b.first} to ${b.last}` : "") + (b.late ? `, ${b.late} late` : ""),
        `checkpoint ${b.from} → ${b.to}`,
        `guard ${b.guard_ms} ms, handlers ${b.handle_ms} ms, commit ${b.commit_ms} ms, ended at ${seconds(r.at)}`,
        b.attempt > 1 && "attempt " + b.attempt, b.error, "record " + r.n],
    };
  });
}

// rescales are splits and merges of a consumer in partitions.
function rescales(records) {
  return records.filter(isKind("rescaled")).map(r => {
    const { from, to, position } = r.about, split = from.length === 1, units = [...from, ...to].map(unitOf);
    return {
      from: r.at, to: r.at, consumer: r.consumer, colour: "badge", split, first: Math.min(...units.map(u => u.first)), end: Math.max(...units.map(u => u.end)),
      tip: [`${r.who} ${split ? "splits" : "merges"} ${from.join(", ")}`, "into " + to.join(", "), `at position ${position}, ${seconds(r.at)}`, "record " + r.n],
    };
  });
}

// samples tell where each consumer stands: one that is split, where its last unit does.
function samples(records) {
  return records.filter(isKind("sample")).map(r => {
    const stands = {};
    for (const [name, at] of Object.entries(r.about.checkpoints)) {
      const consumer = unitOf(name).consumer;
      stands[consumer] = Math.min(stands[consumer] ?? at, at);
    }
    return { ...r, stands };
  });
}

// jobRuns are drawn as the batches of their queue: those that finished their job, those
// that did not, and those whose job was another's.
function jobRuns(records) {
  return records.filter(isKind("job")).map(r => {
    const j = r.about, colour = j.state === "lost" ? "overtaken" : j.state === "completed" ? "committed" : "failed";
    return {
      from: r.at - j.took_ms / 1000, to: r.at, consumer: r.consumer, colour, late: 0,
      tip: [`job ${j.id} (${j.kind}) on ${r.who}: ${j.state}`, `attempt ${j.attempt}, ${j.took_ms} ms until ${seconds(r.at)}`, j.error, "record " + r.n],
    };
  });
}

// transactions are the writers'; prepared ones last until they are decided.
function transactions(records, last) {
  const ends = { commit: "committed", rollback: "rolled back", prepare: "prepared" }, open = new Map(), all = [];
  for (const r of records) {
    const key = r.who + "/" + r.about?.tx;
    if (r.kind === "begin") {
      open.set(key, { from: r.at, to: last, who: r.who, tx: r.about.tx, how: "still open", colour: "open", about: r.about });
      all.push(open.get(key));
    } else if (ends[r.kind] && open.has(key)) {
      const t = open.get(key);
      if (r.kind === "prepare") t.prepared = r.at;
      Object.assign(t, { to: r.kind === "prepare" ? last : r.at, how: ends[r.kind], about: r.about });
      t.colour = t.prepared ? "prepared" : r.kind === "commit" ? "committed" : "rolledback";
      t.n = r.n;
    }
  }
  for (const t of all) {
    const positions = spansText(t.about.positions), given = spansText(t.about.abandoned);
    t.tip = [`${t.who}, transaction ${t.tx}: ${t.how}`, t.about.play, positions && "positions " + positions, given && "given up in a savepoint: " + given,
      `open for ${((t.to - t.from) * 1000).toFixed(0)} ms until ${seconds(t.to)}` + (t.prepared ? ", prepared at " + seconds(t.prepared) : ""),
      t.about.unanswered && "its COMMIT had no answer", t.about.error, t.n && "record " + t.n];
  }
  return all;
}

// owners finds the transactions that drew positions of a span.
function owners(all) {
  const at = new Map();
  for (const t of all)
    for (const s of [...(t.about.positions || []), ...(t.about.abandoned || [])])
      for (let p = s.first; p <= s.last; p++) at.set(p, t);
  return (first, last) => {
    const found = new Set();
    for (let p = first; p <= Math.min(last, first + 2000) && found.size < 5; p++) if (at.has(p)) found.add(at.get(p));
    return [...found];
  };
}

// gaps last from the batch that passed positions in doubt to the one that
// ended the doubt.
function gaps(records, ownersOf, last) {
  const open = [], all = [];
  for (const r of records.filter(isKind("skip"))) {
    const g = r.about, where = g.first === g.last ? "" + g.first : g.first + "–" + g.last;
    const reason = ownersOf(g.first, g.last).map(t => `${t.who}, transaction ${t.tx}${t.about.play ? " (" + t.about.play + ")" : ""}: ${t.how} at ${seconds(t.to)}`);
    if (g.state === "open") {
      const gap = { from: r.at, to: last, consumer: r.consumer, g, colour: "failed", how: "never closed", reason, where };
      open.push(gap);
      all.push(gap);
      continue;
    }
    let closes = false;
    for (const o of open)
      if (o.consumer === r.consumer && o.how === "never closed" && o.g.first <= g.last && g.first <= o.g.last) {
        closes = true;
        Object.assign(o, { to: r.at, how: g.state === "late" ? "delivered late" : "never appeared", colour: g.state === "late" ? "late" : "void" });
      }
    if (!closes) all.push({ from: r.at, to: r.at, consumer: r.consumer, tick: true, colour: "void", g, how: "never to appear, proven when it was passed", reason, where });
  }
  const back = records.filter(r => r.kind === "fault" && /set back/.test(r.about.fault));
  for (const o of open) {
    const by = o.how === "never closed" && back.find(r => r.consumer === o.consumer && r.at >= o.from);
    if (by) Object.assign(o, { to: by.at, how: "forgotten when an operator set the consumer back", colour: "void" });
  }
  all.sort((a, b) => (b.colour === "late") - (a.colour === "late")); // the rarer ones find room first
  for (const x of all)
    x.tip = [`${x.consumer} passed ${plural(x.g.missing, "missing position")} in ${x.where}`, x.how, ...x.reason,
      x.tick ? "at " + seconds(x.from) : `in doubt from ${seconds(x.from)} to ${seconds(x.to)}`];
  return all;
}

// waits are the transactions that frontiers had to wait for: they report them
// by the name of the writer's connection.
function waits(records, written) {
  const all = [];
  const seen = new Map();
  for (const r of records.filter(isKind("transaction blocks"))) {
    const writer = (r.about.application || "").replace(/^sim /, "");
    const t = written.find(t => t.from <= r.at && t.to > r.at && (r.about.prepared ? t.prepared : t.who === writer));
    const key = r.about.prepared && !t ? "prepared" : r.about.holder;
    if (seen.has(key) && seen.get(key).to >= r.at) {
      seen.get(key).tip.push(`reported by ${r.who} at ${seconds(r.at)}`);
      continue;
    }
    const wait = { from: r.at, to: t ? t.to : r.at, colour: r.about.prepared ? "prepared" : "overtaken",
      tip: ["a transaction that stays open for too long", r.about.prepared ? "prepared" : `${writer}, ${r.about.state || ""}`,
        ...(t ? t.tip : []), `reported by ${r.who} at ${seconds(r.at)}`] };
    seen.set(key, wait);
    all.push(wait);
  }
  return all;
}

// inDoubt counts the open ranges of all consumers over time.
function inDoubt(all) {
  const steps = all.filter(g => !g.tick).flatMap(g => [[g.from, 1], [g.to, -1]]).sort((a, b) => a[0] - b[0]);
  let n = 0;
  return steps.flatMap(([t, change]) => [[t, n], [t, n += change]]);
}

// understand makes everything that is drawn.
function understand(records) {
  const last = records[records.length - 1].at;
  const written = transactions(records, last);
  const holes = gaps(records, owners(written), last);
  return {
    header: records.find(isKind("run")).about, last,
    over: records.find(isKind("faults over"))?.at,
    lives: lives(records, last), leaderships: leaderships(records, last), stalls: stalls(records, last), outages: outages(records),
    ownerships: ownerships(records, last), faults: faults(records), batches: [...batches(records), ...jobRuns(records)],
    transactions: written, gaps: holes, inDoubt: inDoubt(holes), waits: waits(records, written),
    rescales: rescales(records), samples: samples(records),
  };
}
