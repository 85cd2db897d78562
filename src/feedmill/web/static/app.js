// Keys, small conveniences. Every page works without this file.
"use strict";
(() => {
  let pending = "";
  const inField = (event) => /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable;
  const find = (key) => [...document.querySelectorAll("[data-key]")].find((item) => item.dataset.key === key);
  const rows = () => [...document.querySelectorAll("[data-sample]")];

  function follow(link) {
    if (!link) return false;
    if (link.tagName === "SUMMARY") {
      link.parentElement.open = !link.parentElement.open;
      const text = document.getElementById("python");
      if (text && navigator.clipboard) navigator.clipboard.writeText(text.textContent).catch(() => {});
    } else {
      link.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, view: window }));
    }
    return true;
  }

  function move(by) {
    const link = document.querySelector(by > 0 ? "[data-next]" : "[data-previous]");
    if (link) return follow(link);
    const all = rows();
    const at = all.findIndex((row) => row.contains(document.activeElement) || row === document.activeElement);
    const row = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    if (!row) return false;
    (row.matches("a") ? row : row.querySelector("a")).focus();
    return true;
  }

  // On a narrow screen the row of views is wider than the screen: the current one is in its middle.
  function center() {
    const views = document.querySelector(".views");
    const here = views && views.querySelector("[aria-current]");
    if (here) views.scrollLeft = here.offsetLeft - (views.clientWidth - here.offsetWidth) / 2;
  }
  center();
  document.addEventListener("htmx:afterSettle", center);

  // A view that htmx put in place has no `:target` yet, which shows the opened sample on a narrow screen.
  function aim() {
    const sheet = document.getElementById(window.location.hash.slice(1));
    if (!sheet || !sheet.matches(".sheet") || getComputedStyle(sheet).display !== "none") return;
    const state = window.history.state;
    window.location.replace(window.location.hash);
    window.history.replaceState(state, "");
  }
  document.addEventListener("htmx:afterSettle", aim);
  document.addEventListener("htmx:historyRestore", aim);

  // A sample that is opened is seen in its list, too: the drawer stays in view beside it.
  function reveal() {
    const row = document.querySelector(".browse.open :is(.tile[aria-current], tr[aria-selected=true])");
    if (!row || window.innerWidth < 1000) return;
    const { top, bottom } = row.getBoundingClientRect();
    if (top < 90 || bottom > window.innerHeight) row.scrollIntoView({ block: "center" });
  }
  window.addEventListener("load", () => window.setTimeout(reveal)); // after the browser's own jump to the drawer
  document.addEventListener("htmx:afterSettle", reveal);

  // The line in the curves of an episode follows its player.
  document.addEventListener("timeupdate", (event) => {
    const box = event.target.closest && event.target.closest("[data-begin]");
    if (!box || (event.target.paused && !event.target.seeking)) return;
    const at = (1000 * (event.target.currentTime - Number(box.dataset.begin))) / Number(box.dataset.seconds);
    for (const line of box.closest(".episode").querySelectorAll("line.here")) {
      for (const end of ["x1", "x2"]) line.setAttribute(end, String(Math.min(Math.max(at, 0), 1000)));
    }
  }, true);

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (inField(event)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    let done = false;
    if (pending === "g") {
      done = follow([...document.querySelectorAll("[data-go]")].find((item) => item.dataset.go === event.key));
      pending = "";
    } else if (event.key === "g") {
      pending = "g";
      window.setTimeout(() => { pending = ""; }, 1000);
      done = true;
    } else if (event.key === "/") {
      const jump = document.getElementById("jump");
      if (jump) { jump.focus(); jump.select(); done = true; }
    } else if (event.key === "j" || event.key === "k") {
      done = move(event.key === "j" ? 1 : -1);
    } else {
      const shifted = event.shiftKey && event.key.startsWith("Arrow") ? "Shift+" : "";
      done = follow(find(shifted + event.key));
    }
    if (done) event.preventDefault();
  });

  // A slider moves the number beside it, which is what counts.
  document.addEventListener("input", (event) => {
    const field = event.target.dataset.for && event.target.form.elements[event.target.dataset.for];
    if (field) field.value = Number(Number(event.target.value).toPrecision(3));
  });
  document.addEventListener("change", (event) => {
    if (event.target.dataset.for) event.target.form.requestSubmit();
  });

  // Controls that change what is shown submit their form at once.
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });

  // A click beside an open menu closes it.
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // A click anywhere in a row opens it.
  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-sample]");
    if (row && !event.target.closest("a") && !String(window.getSelection())) follow(row.querySelector("a"));
  });

  // Unchanged weights are not part of the address.
  document.addEventListener("submit", (event) => {
    for (const field of event.target.querySelectorAll("[data-before]")) {
      if (field.value === field.dataset.before) field.disabled = true;
    }
  }, true);

  // A part that is still being computed, or that changes, is fetched again after as many milliseconds as it says.
  let asked = Date.now();
  window.setInterval(() => {
    const busy = document.querySelector("[data-refresh]");
    if (!busy || document.hidden || Date.now() - asked < Number(busy.dataset.refresh)) return;
    if (busy.contains(document.activeElement) && inField({ target: document.activeElement })) return;
    asked = Date.now();
    const address = window.location.href;
    fetch(address).then((answer) => (answer.ok ? answer.text() : "")).then((text) => {
      const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
      const main = document.getElementById("main");
      if (!fresh || !main || address !== window.location.href) return;
      const held = document.activeElement && main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      main.replaceWith(fresh);
      if (held) [...fresh.querySelectorAll("a")].find((one) => one.getAttribute("href") === held)?.focus({ preventScroll: true });
      document.dispatchEvent(new Event("feedmill:fresh"));
    }).catch(() => {});
  }, 500);
})();
