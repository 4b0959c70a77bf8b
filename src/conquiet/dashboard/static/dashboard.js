// Keeps the changing part of a page up to date, and adds small comforts. Every page can be read without it.
"use strict";
(() => {
  const root = document.documentElement;
  const saved = (() => { try { return localStorage.getItem("conquiet-theme"); } catch { return null; } })();
  if (saved === "light" || saved === "dark") root.dataset.theme = saved;

  const theme = document.getElementById("theme");
  if (theme) {
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("conquiet-theme", root.dataset.theme); } catch { /* not kept */ }
    });
  }

  const all = document.getElementById("check-all");
  if (all) {
    all.hidden = false;
    all.addEventListener("change", () => {
      for (const box of all.form.querySelectorAll('input[name="id"]')) box.checked = all.checked;
    });
  }

  // A changed selection of a filter is sent at once; the button stays for those without a script.
  for (const select of document.querySelectorAll('form[role="search"] select')) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const field = document.querySelector('form[role="search"] input:not([type="hidden"])');
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  });

  const blank = (node) => node.nodeType === Node.TEXT_NODE && !node.nodeValue.trim();

  const same = (one, other) =>
    one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");

  const nextLike = (node, wanted) => {
    while (node && (node.id || !same(node, wanted))) node = node.nextSibling;
    return node;
  };

  // Change `old` into `fresh` in place: focus, selection and what a user has typed or ticked stay. Space between
  // elements is passed over: the page and its updates differ there. An element that is replaced or moved loses the
  // focus, so what is gone is removed first, and what is new is put between what stays.
  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (!same(old, fresh)) { old.replaceWith(fresh.cloneNode(true)); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const wantedIds = new Map([...fresh.children].map((child) => [child.id, child]));
    const known = new Map();
    for (const child of [...old.children]) {
      if (!child.id) continue;
      const stays = wantedIds.has(child.id) && same(child, wantedIds.get(child.id)) && !known.has(child.id);
      if (stays) known.set(child.id, child); else child.remove();
    }
    let at = old.firstChild;
    for (const wanted of fresh.childNodes) {
      if (blank(wanted)) continue;
      while (at && blank(at)) at = at.nextSibling;
      const found = wanted.id ? known.get(wanted.id) : nextLike(at, wanted);
      known.delete(wanted.id);  // a second one of that name is new
      if (!found) { old.insertBefore(wanted.cloneNode(true), at); continue; }
      if (wanted.id && found !== at) old.insertBefore(found, at);
      while (at && !wanted.id && at !== found) {
        const next = at.nextSibling;
        if (!at.id) at.remove();
        at = next;
      }
      at = found.nextSibling;
      morph(found, wanted);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  const live = document.getElementById("live");
  if (!live || !window.EventSource) return;
  const pulse = document.getElementById("pulse");
  const say = (text) => { if (pulse && pulse.textContent !== text) pulse.textContent = text; };
  let source = null;
  const open = () => {
    if (source) return;
    source = new EventSource(live.dataset.live);
    source.addEventListener("page", (event) => {
      const holder = document.createElement("template");
      holder.innerHTML = event.data;  // rendered and escaped by the same templates as the page
      const fresh = live.cloneNode(false);
      fresh.append(holder.content);
      if ("unavailable" in live.dataset && !fresh.querySelector(".notice.bad")) { location.reload(); return; }
      const active = document.activeElement;
      morph(live, fresh);
      if (live.contains(active) && active !== document.activeElement) active.focus({ preventScroll: true });  // it was moved
      live.dataset.updates = String(Number(live.dataset.updates || 0) + 1);
      fresh.remove();
      say("live");
    });
    source.onopen = () => say("live");
    source.onerror = () => say(source && source.readyState === EventSource.CLOSED ? "as loaded: not live" : "connection lost, trying again");
  };
  const close = () => { if (source) { source.close(); source = null; say("paused"); } };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  // After the first frame: the first update would compete with it. A hidden page has none, and is opened when shown.
  requestAnimationFrame(() => setTimeout(open));
})();
