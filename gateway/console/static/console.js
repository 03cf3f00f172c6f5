// Makes pages that work without it more pleasant: local times, live regions, keys, copying.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const doc = document;

  // Times in the viewer's zone; the exact UTC stays in the title.
  const date = new Intl.DateTimeFormat("sv-SE", { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
  const localise = (root) => {
    for (const time of root.querySelectorAll("time[data-shown=date]")) time.textContent = date.format(new Date(time.dateTime));
    for (const tick of root.querySelectorAll("text[data-at]")) if (tick.textContent.includes(":")) tick.textContent = clock.format(new Date(tick.dataset.at));
  };

  // Copying: a button behind what is to be pasted elsewhere.
  const offerCopies = (root) => {
    for (const text of root.querySelectorAll("[data-copy]")) {
      const button = doc.createElement("button");
      button.type = "button";
      button.className = "link copy";
      button.textContent = "copy";
      text.after(" ", button);
    }
  };
  doc.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (button === null) return;
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "copied";
  });
  const enhance = (root) => { localise(root); offerCopies(root); };

  // Live: the page is its own API. Fetched again, its regions are put in the place of the old ones.
  const updated = doc.querySelector("[data-updated]");
  const isBusy = () =>
    doc.hidden ||
    doc.querySelector("input[type=checkbox]:checked, dialog[open]") !== null ||
    (doc.activeElement !== null && doc.activeElement.closest("[data-live]") !== null && doc.activeElement.matches("input, select, textarea, button")) ||
    (window.getSelection() && String(window.getSelection()) !== "");
  const refresh = async () => {
    if (isBusy()) return;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (isBusy()) return;
      for (const old of doc.querySelectorAll("[data-live]")) {
        const now = fresh.querySelector(`[data-live="${CSS.escape(old.dataset.live)}"]`);
        if (now === null) continue;
        keepOpen(old, now);
        enhance(now);
        if (old.innerHTML !== now.innerHTML) old.replaceWith(now);
      }
      mark();
      if (updated) updated.textContent = `as of ${clock.format(new Date())}`;
    } catch {
      if (updated) updated.textContent = "not updated: the gateway does not answer";
    }
  };
  const keepOpen = (old, now) => {
    const before = [...old.querySelectorAll("details")], after = [...now.querySelectorAll("details")];
    if (before.length === after.length) before.forEach((one, n) => { after[n].open = one.open; });
  };

  // Keys.
  let at = -1, going = false;
  const rows = () => [...doc.querySelectorAll("tr[data-row]")];
  const mark = () => rows().forEach((row, n) => row.classList.toggle("here", n === at));
  const move = (by) => {
    const all = rows();
    if (all.length === 0) return;
    at = Math.max(0, Math.min(all.length - 1, at + by));
    mark();
    all[at].scrollIntoView({ block: "nearest" });
  };
  const help = doc.getElementById("help");
  const places = { o: "/console/", e: "/console/events", d: "/console/dead", h: "/console/handlers" };
  const keys = {
    "/": () => doc.getElementById("q")?.focus(),
    j: () => move(1),
    k: () => move(-1),
    Enter: () => rows()[at]?.querySelector("a[data-open]")?.click(),
    x: () => rows()[at]?.querySelector("input[type=checkbox]")?.click(),
    r: () => {
      const act = doc.querySelector(".delivery.dead [data-act], [data-act]");
      if (act) { act.open = true; act.querySelector("input[name=reason]")?.focus(); }
    },
    g: () => { going = true; setTimeout(() => { going = false; }, 1500); },
    "?": () => help?.showModal(),
  };
  doc.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    if (going && places[event.key]) { location.href = places[event.key]; return; }
    const does = keys[event.key];
    if (does) { event.preventDefault(); does(); }
  });
  for (const button of doc.querySelectorAll("[data-help]")) { button.hidden = false; button.addEventListener("click", () => help?.showModal()); }

  enhance(doc);
  if (doc.querySelector("[data-live]")) setInterval(refresh, EVERY_MS);
})();
