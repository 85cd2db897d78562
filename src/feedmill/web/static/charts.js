// Interactive curves in place of drawn ones of the same size: values under the pointer, a range to zoom, a click.
// The numbers are in data-plot; the drawing stays where scripts do not run.
"use strict";
(() => {
  const drawn = new Map(); // element -> chart
  const ranges = []; // what is zoomed, by the number of the chart: it survives that the page is fetched again
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value, digits) => (value === null || value === undefined ? "" : value.toLocaleString("en-US", { maximumSignificantDigits: digits }));
  let loading = null;

  function library() {
    const load = (kind, given) => new Promise((onload, onerror) => {
      document.head.append(Object.assign(document.createElement(kind), given, { onload, onerror }));
    });
    // Both: without its styles, a chart is drawn below its place and jumps there when they arrive.
    loading ||= Promise.all([
      load("link", { rel: "stylesheet", href: "/static/vendor/uplot.min.css" }),
      load("script", { src: "/static/vendor/uplot.min.js" }),
    ]);
    return loading;
  }

  function words(data, at) {
    const unit = data.unit ? ` ${data.unit}` : "";
    const where = data.time ? new Date(1000 * data.x[at]).toLocaleTimeString() : `${data.name} ${number(Math.floor(data.x[at]), 12)}`;
    return `${where}: ${data.series.map((one) => `${one.name} ${number(one.values[at], 5)}${unit}`).join(", ")}`;
  }

  function columns(data) {
    const sum = data.x.map(() => 0);
    const added = (values) => values.map((value, at) => (sum[at] += value || 0));
    return data.series.map((one) => ({ ...one, values: one.fill ? added(one.values) : one.values })).sort(
      (one, other) => Boolean(other.fill) - Boolean(one.fill) || (one.fill ? other.slot - one.slot : 0)); // highest first
  }

  function draw(box, at) {
    const data = JSON.parse(box.dataset.plot);
    const image = box.querySelector("svg");
    const size = () => ({ width: Math.max(box.clientWidth, 10), height: image.clientHeight || box.clientHeight });
    const { width, height } = size();
    const readout = Object.assign(document.createElement("p"), { className: "readout", hidden: true });
    const shown = columns(data);
    const options = {
      width, height, pxAlign: false, legend: { show: false }, padding: [0, 0, 0, 0],
      cursor: { y: false, points: { show: !shown.some((one) => one.fill) }, drag: { x: Boolean(data.zoom), y: false, setScale: Boolean(data.zoom) } },
      scales: { x: { time: false, range: () => ranges[at] || data.range }, y: { distr: data.log ? 3 : 1, range: () => data.heights } },
      axes: [{ show: false }, { show: false }],
      series: [{}, ...shown.map((one) => {
        const stroke = () => (one.slot ? color(`--src-${one.slot}`) : color(one.dash ? "--ink" : "--ink-2"));
        return { stroke, width: one.fill ? 0 : 1.4, dash: one.dash, fill: one.fill ? stroke : undefined, points: { show: false } };
      })],
      hooks: {
        setCursor: [(plot) => {
          const { idx } = plot.cursor;
          readout.hidden = idx === null || idx === undefined;
          if (!readout.hidden) readout.textContent = words(data, idx);
        }],
        setScale: [(plot, key) => {
          if (key !== "x" || !data.zoom) return;
          const { min, max } = plot.scales.x;
          ranges[at] = min <= data.range[0] && max >= data.range[1] ? undefined : [min, max];
        }],
      },
    };
    if (data.zoom) options.scales.x.range = (plot, low, high) => [low ?? data.range[0], high ?? data.range[1]];
    const frame = document.createElement("div");
    frame.setAttribute("aria-hidden", "true"); // the drawing below has the description
    const chart = new window.uPlot(options, [data.x, ...shown.map((one) => one.values)], frame);
    if (data.zoom) chart.setScale("x", { min: (ranges[at] || data.range)[0], max: (ranges[at] || data.range)[1] });
    image.classList.add("under");
    box.append(frame, readout);
    if (data.click) {
      let from = 0;
      chart.over.addEventListener("mousedown", (event) => { from = event.clientX; });
      chart.over.addEventListener("click", (event) => {
        const { idx } = chart.cursor;
        if (idx === null || idx === undefined || Math.abs(event.clientX - from) > 4) return;
        const field = document.getElementById(data.click);
        field.value = Math.floor(data.x[idx]);
        field.form.requestSubmit();
      });
    }
    chart.over.addEventListener("dblclick", () => {
      if (data.zoom) chart.setScale("x", { min: data.range[0], max: data.range[1] });
    });
    drawn.set(box, { chart, frame, readout, image, size });
  }

  function remove(box) {
    const one = drawn.get(box);
    one.chart.destroy();
    one.frame.remove();
    one.readout.remove();
    one.image.classList.remove("under");
    drawn.delete(box);
  }

  function all() {
    for (const box of [...drawn.keys()]) if (!box.isConnected) { drawn.get(box).chart.destroy(); drawn.delete(box); }
    const boxes = [...document.querySelectorAll("[data-plot]")];
    if (!boxes.length) return;
    library().then(() => boxes.forEach((box, at) => { if (!drawn.has(box) && box.isConnected) draw(box, at); })).catch(() => {});
  }

  window.addEventListener("resize", () => { for (const one of drawn.values()) one.chart.setSize(one.size()); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { [...drawn.keys()].forEach(remove); all(); });
  document.addEventListener("feedmill:fresh", all);
  document.addEventListener("htmx:afterSettle", all);
  all();
})();
