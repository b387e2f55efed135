"use strict";
// Keeps the part of a page that changes up to date. What stays the same stays in place, so
// focus, selection and scrolling survive. Without this script the page shows how things
// stood when it was loaded.
(() => {
  const part = document.querySelector("[data-live]");
  if (!part || !window.EventSource) return;
  const said = document.getElementById("said"), updates = document.getElementById("updates");
  const toggle = document.getElementById("toggle"), when = document.getElementById("when");
  let source = null, again = 0, away = false, summary = summaryOf(part);

  function summaryOf(root) {
    const holder = root.querySelector("[data-summary]");
    return holder ? holder.dataset.summary : "";
  }

  // say tells screen readers what has changed, and nothing as long as nothing has.
  function say(text) {
    if (said.textContent !== text) said.textContent = text;
  }

  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  // key tells rows and regions apart from what is beside them.
  const key = node => node.dataset && (node.dataset.key ?? (node.role === "region" ? node.ariaLabel : undefined));

  // become makes a node equal to another one.
  function become(node, other) {
    if (node.nodeType !== Node.ELEMENT_NODE) {
      if (node.nodeValue !== other.nodeValue) node.nodeValue = other.nodeValue;
      return;
    }
    for (const { name } of [...node.attributes]) if (!other.hasAttribute(name)) node.removeAttribute(name);
    for (const { name, value } of other.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    children(node, other);
  }

  // children keeps each child that is still there. Rows are told apart by their keys.
  function children(node, other) {
    const stay = new Set([...other.childNodes].map(key));
    for (const old of [...node.childNodes]) if (key(old) !== undefined && !stay.has(key(old))) old.remove();
    let at = node.firstChild;
    const drop = () => {
      const next = at.nextSibling;
      at.remove();
      at = next;
    };
    for (const child of [...other.childNodes]) {
      if (key(child) !== undefined) while (at && key(at) === undefined) drop(); // the space around a row that is gone
      if (at && same(at, child)) {
        become(at, child);
        at = at.nextSibling;
      } else {
        if (at && key(at) === undefined) drop();
        node.insertBefore(child, at);
      }
    }
    while (at) drop();
  }

  function listen() {
    source = new EventSource(part.dataset.live);
    source.addEventListener("state", e => {
      const fresh = document.createElement("div");
      fresh.innerHTML = e.data;
      children(part, fresh);
      const now = summaryOf(part);
      if (away) say("It answers again. " + now);
      else if (now !== summary) say(now);
      away = false;
      summary = now;
      when.textContent = "Updated " + new Date().toLocaleTimeString();
      document.documentElement.dataset.updates = 1 + Number(document.documentElement.dataset.updates || 0);
    });
    source.addEventListener("away", e => lost("No update: " + e.data));
    source.onerror = () => {
      lost("The connection to the console is lost, and tried again.");
      // The browser itself tries again unless something else has answered, as a proxy does
      // while the console is away.
      if (source.readyState === EventSource.CLOSED) again = setTimeout(listen, 5000);
    };
  }

  function stop() {
    clearTimeout(again);
    if (source) source.close();
    source = null;
  }

  // Nobody looks at a page in the background.
  function follow() {
    const wanted = toggle.dataset.stopped === undefined && !document.hidden;
    if (wanted && !source) listen();
    if (!wanted) stop();
  }

  function lost(text) {
    if (!away) say(text);
    away = true;
    when.textContent = text;
  }

  toggle.addEventListener("click", () => {
    const stopped = toggle.toggleAttribute("data-stopped");
    toggle.textContent = stopped ? "Continue updates" : "Stop updates";
    if (stopped) when.textContent = "Updates are stopped.";
    follow();
  });
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", follow);
  updates.hidden = false;
  follow();
})();
