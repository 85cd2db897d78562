// The filter bench: sliders set the fields below their histogram, and what the limits keep is shown at once.
// Without this file the form is sent by its button.
"use strict";
(() => {
  const form = document.getElementById("limits");
  if (!form) return;
  let waiting = 0;
  let running = null;

  const edges = (item) => item.closest("[data-edges]").dataset.edges.split(" ").map(Number);

  function valueAt(slider) {
    const all = edges(slider);
    const place = Number(slider.value);
    const bar = Math.min(Math.floor(place), all.length - 2);
    const value = all[bar] + (all[bar + 1] - all[bar]) * (place - bar);
    return slider.closest("[data-edges]").hasAttribute("data-whole") ? Math.round(value) : Number(value.toPrecision(4));
  }

  function placeOf(field) {
    const all = edges(field);
    const value = Number(field.value.replaceAll(",", ""));
    if (field.value.trim() === "" || Number.isNaN(value)) return field.name.startsWith("min.") ? 0 : all.length - 1;
    const bar = Math.max(0, Math.min(all.findIndex((edge) => edge > value) - 1, all.length - 2));
    if (value >= all[all.length - 1]) return all.length - 1;
    return bar + (value - all[bar]) / (all[bar + 1] - all[bar] || 1);
  }

  const sliderOf = (field) => form.querySelector(`[data-field="${field.id}"]`);

  function slid(slider) {
    const field = document.getElementById(slider.dataset.field);
    const other = form.querySelector(`[data-field="${slider.dataset.field.replace(/^m../, (end) => (end === "min" ? "max" : "min"))}"]`);
    const low = field.name.startsWith("min.");
    if (low && Number(slider.value) > Number(other.value)) slider.value = other.value;
    if (!low && Number(slider.value) < Number(other.value)) slider.value = other.value;
    const atEnd = low ? Number(slider.value) <= 0 : Number(slider.value) >= Number(slider.max);
    field.value = atEnd ? "" : String(valueAt(slider));
  }

  function address() {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value.trim() !== "") query.append(name, value);
    return form.getAttribute("action") + (query.size ? `?${query}` : "");
  }

  async function show() {
    const url = address();
    if (running) running.abort();
    running = new AbortController();
    try {
      const answer = await fetch(url, { signal: running.signal });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!fresh.getElementById("limits")) { window.location.assign(url); return; }
      for (const part of document.querySelectorAll("[data-live]")) {
        const now = fresh.getElementById(part.id);
        if (now) part.replaceWith(now);
      }
      for (const link of [".top [data-key='t']", ".top [data-key='?']", "body > footer a"]) {
        const [old, now] = [document, fresh].map((page) => page.querySelector(link));
        if (old && now) old.setAttribute("href", now.getAttribute("href"));
      }
      window.history.replaceState(null, "", url);
    } catch (error) {
      if (error.name !== "AbortError") form.requestSubmit();
    }
  }

  form.addEventListener("input", (event) => {
    const slider = event.target.closest("[data-field]");
    if (slider) slid(slider);
    else if (event.target.id && sliderOf(event.target)) sliderOf(event.target).value = placeOf(event.target);
    window.clearTimeout(waiting);
    waiting = window.setTimeout(show, slider || event.target.type === "checkbox" ? 60 : 400);
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    window.clearTimeout(waiting);
    show();
  });
})();
