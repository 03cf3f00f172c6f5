// Makes pages that work without it more pleasant: local times, live regions, keys, copying.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const doc = document;

  // Times in the viewer's zone; the exact UTC stays in the title.
  const date = new Intl.DateTimeFormat("sv-SE", { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
  const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const localise = (root) => {
    for (const time of root.querySelectorAll("time[data-shown=date]")) time.textContent = date.format(new Date(time.dateTime));
    for (const tick of root.querySelectorAll("text[data-at]")) if (tick.textContent.includes(":")) tick.textContent = clock.format(new Date(tick.dataset.at));
  };

  // Copying: a button behind what is to be pasted elsewhere, or behind a link to it.
  const offerCopies = (root) => {
    for (const text of root.querySelectorAll("[data-copy], [data-copy-from]")) {
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
    const source = button.previousElementSibling;
    try {
      const text = source.matches("[data-copy-from]") ? await fetched(source.href) : source.textContent;
      await copy(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "not copied: select it, or save the link";
    }
  });
  const fetched = async (url) => {
    const answer = await fetch(url);
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    return answer.text();
  };
  // Without TLS a browser has no clipboard for scripts, but still the old way.
  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = doc.createElement("textarea");
    field.value = text;
    doc.body.append(field);
    field.select();
    const done = doc.execCommand("copy");
    field.remove();
    if (!done) throw new Error("refused");
  };
  // Ticks: all of the page at once, and how many there are on the buttons that act on them.
  const offerTicks = (root) => { for (const box of root.querySelectorAll("[data-tick-all]")) box.hidden = false; };
  const boxes = () => [...doc.querySelectorAll("tr[data-row] input[type=checkbox]")];
  const countTicks = () => {
    const all = boxes(), n = all.filter((box) => box.checked).length;
    for (const place of doc.querySelectorAll("[data-ticked] [data-count]")) place.textContent = n ? ` (${n})` : "";
    for (const box of doc.querySelectorAll("[data-tick-all]")) { box.checked = n > 0 && n === all.length; box.indeterminate = n > 0 && n < all.length; }
  };
  doc.addEventListener("change", (event) => {
    if (event.target.matches("[data-tick-all]")) for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.matches("input[type=checkbox]")) countTicks();
  });
  const enhance = (root) => { localise(root); offerCopies(root); offerTicks(root); };

  // Live: the page is its own API. Fetched again, its regions are put in the place of the old ones.
  const updated = doc.querySelector("[data-updated]");
  const FIELDS = "input:not([type=checkbox], [type=hidden]), select, textarea";
  const isTyped = (field) => field.value !== (field.defaultValue ?? field.value);
  // Why the page stands still: what somebody is in the middle of must not be swapped away.
  const busyWith = () => {
    const focused = doc.activeElement;
    if (doc.hidden) return "the page is hidden";
    if (doc.querySelector("input[type=checkbox]:checked") !== null) return "rows are ticked";
    if (doc.querySelector("dialog[open]") !== null) return "the keys are shown";
    if (focused?.closest("[data-live]") && focused.matches(`${FIELDS}, button`)) return "a form is being filled in";
    if ([...doc.querySelectorAll("[data-live] form")].some((form) => [...form.querySelectorAll(FIELDS)].some(isTyped))) return "a form is filled in";
    if (String(window.getSelection() ?? "") !== "") return "text is selected";
    return null;
  };
  const isBusy = () => {
    const why = busyWith();
    if (why !== null) say(`not updated while ${why}`);
    return why !== null;
  };
  const refresh = async () => {
    if (isBusy()) return;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.redirected) { say("not updated: logged out, reload to log in"); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (isBusy()) return;
      for (const old of doc.querySelectorAll("[data-live]")) {
        const now = fresh.querySelector(`[data-live="${CSS.escape(old.dataset.live)}"]`);
        if (now === null || old.querySelector(":focus-visible") !== null) continue;
        keepOpen(old, now);
        enhance(now);
        if (old.innerHTML !== now.innerHTML) old.replaceWith(now);
      }
      mark();
      say(`as of ${seconds.format(new Date())}`);
    } catch {
      say("not updated: the gateway does not answer");
    }
  };
  const say = (text) => { if (updated) updated.textContent = text; };
  const keepOpen = (old, now) => {
    const before = [...old.querySelectorAll("details")], after = [...now.querySelectorAll("details")];
    if (before.length === after.length) before.forEach((one, n) => { after[n].open = one.open; });
  };

  // Keys. The row that one is at is known by what it leads to: new rows come in above it.
  let at = null, going = false;
  const rows = () => [...doc.querySelectorAll("tr[data-row]")];
  const key = (row) => row.querySelector("input[type=checkbox]")?.value ?? row.querySelector("a[data-open]")?.href;
  const here = () => rows().find((row) => key(row) === at);
  const mark = () => rows().forEach((row) => row.classList.toggle("here", key(row) === at));
  const move = (by) => {
    const all = rows();
    if (all.length === 0) return;
    const n = all.indexOf(here());
    const row = all[n === -1 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, n + by))];
    at = key(row);
    mark();
    row.scrollIntoView({ block: "nearest" });
  };
  const replay = () => {
    const form = doc.querySelector(".delivery.dead [data-act]") ?? doc.querySelector("[data-act]");
    if (form) {
      form.open = true;
      form.querySelector("input[name=reason]")?.focus();
      return;
    }
    const box = here()?.querySelector("input[type=checkbox]");
    if (box && doc.querySelector("tr[data-row] input:checked") === null) box.click();
    if (doc.querySelector("tr[data-row] input:checked")) doc.querySelector("[data-ticked] input[name=reason]")?.focus();
  };
  const help = doc.getElementById("help");
  const places = { o: "/console/", e: "/console/events", d: "/console/dead", h: "/console/handlers" };
  const keys = {
    "/": () => doc.getElementById("q")?.focus(),
    j: () => move(1),
    k: () => move(-1),
    Enter: () => here()?.querySelector("a[data-open]")?.click(),
    n: () => doc.querySelector(".pager a[rel=next]")?.click(),
    p: () => doc.querySelector(".pager a[rel=first]")?.click(),
    x: () => here()?.querySelector("input[type=checkbox]")?.click(),
    r: replay,
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
  countTicks(); // a browser that comes back to a page may have kept them
  if (doc.querySelector("[data-live]")) setInterval(refresh, EVERY_MS);
})();
