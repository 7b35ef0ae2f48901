"use strict";
// Everything works without this script but the switches, the parts that are fetched late, the player and the keys.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const store = (name, value) => {
    try {
      if (value === undefined) return localStorage.getItem(name);
      localStorage.setItem(name, value);
    } catch { /* a file opened from the disk may have no storage */ }
    return null;
  };

  // Layers of geometry, switched on all images and remembered.
  for (const box of all("[data-layer]")) {
    const name = box.dataset.layer;
    const apply = () => document.body.classList.toggle(`no-${name}`, !box.checked);
    if (store(`layer-${name}`) === "off") box.checked = false;
    box.addEventListener("change", () => { store(`layer-${name}`, box.checked ? "on" : "off"); apply(); });
    apply();
  }

  // Parts of the page that take longer, fetched one after another from the same server.
  const fill = async (part) => {
    part.classList.add("loading");
    try {
      const answer = await fetch(part.dataset.src);
      if (answer.ok) part.innerHTML = await answer.text(); // written by the server, which has escaped every value
      else part.textContent = await answer.text();
      for (const strip of all("[data-strip]", part)) play(strip);
      for (const current of all(".strip [aria-current]", part)) current.parentNode.scrollLeft = current.offsetLeft - current.parentNode.offsetLeft - 120;
    } catch {
      part.textContent = "not available: has the server ended?";
    }
    part.classList.remove("loading");
  };
  const later = all("[data-src]");
  const next = async () => { const part = later.shift(); if (part) { await fill(part); await next(); } };
  next(); next();

  // The frames of a track, one after another, in the large image's place.
  function play(strip) {
    const button = strip.querySelector("button");
    const frames = all(".strip img", strip).map((image) => image.getAttribute("src"));
    const target = document.getElementById("large");
    if (!button || !target || frames.length < 2) return;
    const overlay = document.querySelector("#image > svg");
    const pause = Math.max(16, Number(strip.dataset.strip) || 200);
    const first = target.getAttribute("src");
    const sound = strip.querySelector("audio");
    let timer = null, at = 0;
    const stop = () => { clearInterval(timer); timer = null; if (sound) sound.pause(); button.textContent = "▶ Play"; target.src = first; if (overlay) overlay.style.visibility = ""; };
    button.hidden = false;
    button.addEventListener("click", () => {
      if (timer) { stop(); return; }
      button.textContent = "■ Stop";
      if (overlay) overlay.style.visibility = "hidden"; // it belongs to one frame
      const show = () => {
        if (sound && at % frames.length === 0) { sound.currentTime = 0; sound.play().catch(() => {}); }
        target.src = frames[at++ % frames.length];
      };
      at = 0;
      show();
      timer = setInterval(show, pause);
    });
  }

  // Keys: / to the filter, arrows through samples, or from card to card.
  const follow = (rel) => { const link = document.querySelector(`a[rel="${rel}"]`); if (link) location.href = link.href; };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const where = document.getElementById("where");
    if (event.target.matches("input[type=text], select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "/" && where) { event.preventDefault(); where.focus(); where.select(); return; }
    if (event.key === "n") follow("next");
    if (event.key === "p") follow("prev");
    const grid = document.querySelector(".grid");
    if (!grid) {
      if (event.key === "ArrowRight") follow("next");
      if (event.key === "ArrowLeft") follow("prev");
      if (event.key === "Escape") follow("up");
      return;
    }
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 0, ArrowUp: 0 };
    if (!(event.key in moves)) return;
    const links = all("a.card", grid);
    const at = links.indexOf(document.activeElement);
    if (at < 0) { if (event.key === "ArrowRight" && links[0]) links[0].focus(); return; }
    const across = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const to = at + (moves[event.key] || (event.key === "ArrowDown" ? across : -across));
    event.preventDefault();
    if (links[to]) links[to].focus();
  });
})();
