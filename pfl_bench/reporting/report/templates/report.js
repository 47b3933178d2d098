"use strict";
// What the page does: sort, filter, draw, expand, copy. All text from the data goes into the page
// as text, never as markup; `plain` does the same for Plotly, which reads a little markup. The one
// exception are tables by another metric, which were escaped like those that the page came with.
(async () => {
  let data = { runs: [], experiments: [] };
  const PAGE = 50;
  const NARROW = window.matchMedia("(max-width: 48rem)");
  // Okabe and Ito's colours, which people with any colour vision tell apart; dashes go on from there.
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];

  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  const plain = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const fixed = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits));
  const percent = (value) => (value === null ? "–" : (100 * value).toFixed(2));
  const scaled = (value, unit) => (value === null ? null : value / unit);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const known = (values) => values.filter((value) => value !== null && value !== undefined);
  const meanOf = (values) => (known(values).length ? mean(known(values)) : null);
  function deviation(values) {
    if (values.length < 2) return null;
    const centre = mean(values);
    const squares = values.reduce((sum, value) => sum + (value - centre) ** 2, 0);
    return Math.sqrt(squares / (values.length - 1));
  }

  // --- unpacking --------------------------------------------------------------------------------

  const unpacked = new Map();

  // What lies compressed in the page, each part once.
  function unpack(name) {
    if (!unpacked.has(name)) {
      const text = find(`#packed-${name}`)?.textContent;
      const bytes = Uint8Array.from(atob(text ?? ""), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      unpacked.set(name, new Response(stream).text());
    }
    return unpacked.get(name);
  }

  const read = async (name) => JSON.parse(await unpack(name));

  let plotting = null;
  function loadPlotly() {
    if (!find("#packed-plotly")) return Promise.resolve();
    plotting ??= unpack("plotly").then((text) => {
      const script = make("script");
      script.textContent = text;
      document.head.append(script);
    });
    return plotting;
  }

  const details = new Map();

  // The details of a run: its curves and clients, where it comes from, how it is made again.
  async function loadDetails(part) {
    if (!details.has(part)) {
      details.set(part, read(part).then((found) => {
        for (const [place, detail] of Object.entries(found)) Object.assign(data.runs[place], detail);
      }));
    }
    return details.get(part);
  }

  const best = (run, name) => (run.best ? run.best[name] : null);

  function say(text) {
    find("#said").textContent = text;
  }

  // --- light and dark ---------------------------------------------------------------------------

  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = {
    read() { try { return localStorage.getItem("pfl-bench-theme"); } catch { return null; } },
    write(value) { try { localStorage.setItem("pfl-bench-theme", value); } catch { /* not kept */ } },
  };
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

  function showTheme() {
    find("#theme").setAttribute("aria-pressed", String(isDark()));
  }

  function theme() {
    if (["light", "dark"].includes(kept.read())) document.documentElement.dataset.theme = kept.read();
    showTheme();
    find("#theme").addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      kept.write(document.documentElement.dataset.theme);
      showTheme();
      draw();
    });
    system.addEventListener("change", () => { showTheme(); draw(); });
  }

  // Plotly wants colours, not variables.
  function colour(name) {
    const probe = find(".brand");
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color;
    probe.style.color = "";
    return found;
  }

  // --- copying ----------------------------------------------------------------------------------

  async function copy(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { class: "aside" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    say("The command is copied.");
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  // --- sorting ----------------------------------------------------------------------------------

  // Best first, worst first, as printed; what has no figure stays at the end.
  function nextOrder(th, first) {
    const now = th.getAttribute("aria-sort");
    if (now === "none") return first;
    return now === first ? (first === "ascending" ? "descending" : "ascending") : "none";
  }

  function markOrder(th, order) {
    for (const other of th.parentElement.children) {
      if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    }
    th.setAttribute("aria-sort", order);
  }

  function compare(a, b, sign) {
    const absent = (value) => value === null || value === undefined || value === "";
    if (absent(a) || absent(b)) return absent(a) - absent(b);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sortValue(row, column) {
    const cell = row.cells[column];
    if (cell.tagName === "TH") return cell.textContent.trim();
    const by = find("#sort-by")?.value;
    const text = by === "paper" && cell.dataset.paper !== undefined ? cell.dataset.paper : cell.dataset.value;
    return text === "" ? null : Number(text);
  }

  function sortRows(table, th, order) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.forEach((row, place) => { row.dataset.place ??= place; });
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      const printed = a.dataset.place - b.dataset.place;
      if (order === "none") return printed;
      return compare(sortValue(a, th.cellIndex), sortValue(b, th.cellIndex), sign) || printed;
    });
    body.append(...rows);
    table.classList.toggle("sorted", order !== "none");
    markOrder(th, order);
  }

  function sortable(table) {
    table.addEventListener("click", (event) => {
      const button = event.target.closest(".sort");
      if (!button) return;
      const th = button.parentElement;
      const sample = find(`td:nth-child(${th.cellIndex + 1})`, table.tBodies[0]);
      const first = !th.cellIndex || sample?.dataset.better === "low" ? "ascending" : "descending";
      sortRows(table, th, nextOrder(th, first));
    });
  }

  // --- filters ----------------------------------------------------------------------------------

  const filters = { dataset: "", setting: "", method: "" };
  const matches = (facts) =>
    Object.entries(filters).every(([name, value]) => !value || facts[name] === value);

  function filterSheet(sheet) {
    const table = find("table.figures", sheet);
    const shown = new Set();
    let rowsShown = 0;
    for (const row of table.tBodies[0].rows) {
      let any = false;
      for (const cell of all("td", row)) {
        const fits = matches(cell.dataset);
        cell.classList.toggle("off", !fits);
        if (fits) { any = true; shown.add(cell.cellIndex); }
      }
      row.hidden = !any;
      rowsShown += any;
    }
    for (const row of table.rows) {
      for (const cell of [...row.cells].slice(1)) cell.hidden = !shown.has(cell.cellIndex);
    }
    sheet.hidden = !rowsShown;
    return rowsShown > 0;
  }

  function applyFilters() {
    for (const select of all("[data-filter]")) filters[select.dataset.filter] = select.value;
    const sheets = all(".sheet");
    const left = sheets.filter(filterSheet).length;
    if (sheets.length) find("#no-table").hidden = left > 0;
    listRuns();
    listExperiments();
    const parts = [`${runs.length} of ${data.runs.length} runs`];
    if (sheets.length) parts.unshift(`${left} of ${sheets.length} tables`);
    find("#matches").textContent = parts.join(", ");
  }

  // --- one experiment ---------------------------------------------------------------------------

  let series = [];

  function fill(select, labels, chosen) {
    const before = select.value || String(chosen);
    select.replaceChildren(...labels.map(([value, text]) => {
      const option = make("option", { value });
      option.textContent = text;
      return option;
    }));
    if (labels.some(([value]) => String(value) === before)) select.value = before;
  }

  function listExperiments() {
    const fits = ({ dataset, setting, series: members }) =>
      members.some(({ method }) => matches({ dataset, setting, method }));
    const choices = data.experiments.map((one, k) => [one, k]).filter(([one]) => fits(one));
    fill(find("#experiment-choice"), choices.map(([one, k]) => [k, `${one.label} (${count(one.series.length, "method")})`]),
      data.experiments.findIndex(({ featured }) => featured));
    find("#no-experiment").hidden = choices.length > 0;
    find("#experiment-body").hidden = !choices.length;
    if (choices.length) chooseExperiment();
  }

  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

  function chooseExperiment() {
    const experiment = data.experiments[find("#experiment-choice").value];
    const usual = experiment.series.filter(({ variant }) => !variant);
    const variants = experiment.series.filter(({ variant }) => variant);
    find("#variants-choice").hidden = !usual.length || !variants.length;
    find("#variants-choice label").textContent = count(variants.length, "variant");
    const wanted = !usual.length || find("#variants").checked || filters.method ? [...usual, ...variants] : usual;
    series = wanted
      .map((one, k) => ({
        ...one,
        runs: one.runs.map((place) => data.runs[place]),
        colour: COLOURS[k % COLOURS.length],
        dash: DASHES[Math.floor(k / COLOURS.length) % DASHES.length],
      }))
      .filter(({ method }) => !filters.method || method === filters.method);
    find("#curve-band").checked = series.length <= 4;
    fill(find("#client-method"), series.map((one, k) => [k, one.label]));
    showCosts();
    draw();
  }

  const COSTS = [
    ["best accuracy (%)", (run) => best(run, "accuracy"), percent, "high", true],
    ["mean of clients (%)", (run) => best(run, "mean_over_clients"), percent, "high"],
    ["std of clients", (run) => best(run, "std_over_clients"), percent, "low"],
    ["worst decile (%)", (run) => best(run, "worst_decile"), percent, "high"],
    ["best round", (run) => best(run, "round"), (value) => fixed(value, 1), "low"],
    ["s per round", (run) => run.secondsPerRound, (value) => fixed(value, 2), "low"],
    ["s in all", (run) => run.seconds, (value) => fixed(value, 1), "low"],
    ["peak memory (GB)", (run) => scaled(run.memory, 1e9), fixed, "low"],
    ["MB up", (run) => scaled(run.bytesUp, 1e6), (value) => fixed(value, 3), "low"],
    ["MB down", (run) => scaled(run.bytesDown, 1e6), (value) => fixed(value, 3), "low"],
  ];

  function sortHead(titles) {
    const heads = titles.map((title, k) => {
      const button = make("button", { type: "button", class: "sort" }, title);
      return make("th", { scope: "col", "aria-sort": "none", class: k ? "number" : null }, button);
    });
    return make("thead", {}, make("tr", {}, ...heads));
  }

  function seedsOf(one) {
    const odd = one.runs.filter(({ status }) => status !== "finished");
    if (!odd.length) return count(one.runs.length, "seed");
    const words = [...new Set(odd.map(({ status }) => status))].join(", ");
    return odd.length === one.runs.length ? words : `${count(one.runs.length, "seed")}, ${odd.length} ${words}`;
  }

  function showCosts() {
    const rows = series.map((one) => {
      const cells = COSTS.map(([, read, show, better, spread]) => {
        const values = known(one.runs.map(read));
        const value = meanOf(values);
        const around = spread && values.length > 1 ? ` ± ${percent(deviation(values))}` : "";
        const text = `${show(value)}${around}`;
        return make("td", { class: "number", "data-value": value ?? "", "data-better": better }, text);
      });
      const name = make("th", { scope: "row" }, `${one.label} `, make("span", { class: "tag" }, seedsOf(one)));
      return make("tr", {}, name, ...cells);
    });
    find("#costs").replaceChildren(sortHead(["method", ...COSTS.map(([title]) => title)]), make("tbody", {}, ...rows));
  }

  // --- pictures ---------------------------------------------------------------------------------

  function layout(more) {
    const line = colour("line");
    const axis = { gridcolor: line, zeroline: false, linecolor: line, ticks: "outside", tickcolor: line, automargin: true };
    const { xaxis, yaxis, ...rest } = more;
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: colour("ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 52, r: 12, t: 34, b: 44 },
      hovermode: "closest",
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("soft"), font: { color: colour("ink") }, align: "left", namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("soft"), activecolor: colour("accent") },
      // A finger that drags means to scroll the page; it zooms with the buttons of the picture.
      dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
      ...rest,
    };
  }

  const CONFIG = {
    responsive: true, displaylogo: false, showTips: false,
    // Named one by one: Plotly's own choice has a button that uploads.
    modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
  };

  const Y = {
    accuracy: ["test accuracy (%)", 100, 2], testLoss: ["test loss", 1, 4], trainLoss: ["training loss", 1, 4],
  };
  const X = { round: ["round", 0], megabytes: ["MB communicated by all clients", 1], seconds: ["seconds", 1] };

  // The mean over seeds at each round that was measured, and where it lies on the axis.
  function meanCurve(one, xName, yName) {
    const rounds = new Map();
    for (const { curve } of one.runs) {
      curve.round.forEach((round, k) => {
        if (curve[yName][k] === null) return;
        if (!rounds.has(round)) rounds.set(round, { x: [], y: [] });
        rounds.get(round).x.push(curve[xName][k]);
        rounds.get(round).y.push(curve[yName][k] * Y[yName][1]);
      });
    }
    return [...rounds.entries()].sort(([a], [b]) => a - b).map(([round, { x, y }]) => ({
      round, x: mean(x), y: mean(y), std: deviation(y), seeds: y.length,
    }));
  }

  function drawCurves() {
    const xName = find("#curve-x").value;
    const yName = find("#curve-y").value;
    const [xTitle, xDigits] = X[xName];
    const [yTitle, , digits] = Y[yName];
    const traces = [];
    let longest = 0;
    for (const one of series) {
      const points = meanCurve(one, xName, yName);
      if (!points.length) continue;
      longest = Math.max(longest, points[points.length - 1].round);
      if (find("#curve-band").checked && points.some(({ std }) => std)) {
        const there = points.map((p) => p.y + (p.std || 0));
        const back = points.map((p) => p.y - (p.std || 0)).reverse();
        const x = points.map((p) => p.x);
        traces.push({
          x: [...x, ...x.slice().reverse()], y: [...there, ...back], fill: "toself", mode: "lines", type: "scatter",
          line: { width: 0 }, fillcolor: `${one.colour}26`, hoverinfo: "skip", showlegend: false, legendgroup: one.label,
        });
      }
      traces.push({
        x: points.map((p) => p.x), y: points.map((p) => p.y), name: plain(short(one.label)), legendgroup: one.label, type: "scatter",
        mode: points.length > 60 ? "lines" : "lines+markers", marker: { size: 5 },
        line: { color: one.colour, dash: one.dash, width: 1.75 },
        text: points.map((p) => {
          const around = p.std === null ? "" : ` ± ${p.std.toFixed(digits)}`;
          const where = xName === "round" ? `round ${p.round}` : `${p.x.toFixed(xDigits)} ${xName === "seconds" ? "s" : "MB"}, round ${p.round}`;
          return `<b>${plain(one.label)}</b><br>${where}: ${p.y.toFixed(digits)}${around} (${count(p.seeds, "seed")})`;
        }),
        hovertemplate: "%{text}<extra></extra>",
      });
    }
    const below = { orientation: "h", y: -0.2, yanchor: "top", x: 0 };
    return Plotly.react("curves", traces, layout({
      xaxis: xName === "round" ? { title: { text: xTitle }, tickformat: "d", dtick: longest < 12 ? 1 : null } : { title: { text: xTitle }, rangemode: "tozero" },
      yaxis: { title: { text: yTitle } },
      legend: NARROW.matches ? below : { x: 1.02, y: 1 },
      height: NARROW.matches ? 400 + 24 * Math.ceil(series.length / 2) : 440,
      showlegend: true,
      uirevision: `${find("#experiment-choice").value} ${xName} ${yName}`,
    }), CONFIG);
  }

  // Client k of all seeds holds the same data: the partition does not depend on the seed.
  function clientsOf(one) {
    const parts = known(one.runs.map((run) => run.perClient));
    const size = Math.max(0, ...parts.map((part) => part.total.length));
    const found = [];
    for (let client = 0; client < size; client += 1) {
      const scored = parts.filter((part) => part.total[client]);
      if (!scored.length) continue;
      found.push({
        client,
        accuracy: 100 * mean(scored.map((part) => part.correct[client] / part.total[client])),
        total: scored[0].total[client],
      });
    }
    return found;
  }

  function drawSpread() {
    const shown = series.map((one) => ({ ...one, clients: clientsOf(one) })).reverse();
    const traces = shown.map((one) => ({
      type: "box", orientation: "h", x: one.clients.map((c) => c.accuracy), y: one.clients.map(() => plain(short(one.label))),
      name: plain(one.label), line: { color: one.colour, width: 1.5 }, fillcolor: `${one.colour}22`, boxpoints: "outliers",
      marker: { size: 3.5 }, text: one.clients.map((c) => `client ${c.client}`), hoverinfo: "x+text", xhoverformat: ".2f", showlegend: false,
    }));
    return Plotly.react("spread", traces, layout({
      xaxis: { title: { text: "accuracy of a client (%)" } }, yaxis: { showgrid: false },
      height: Math.max(260, 90 + 30 * shown.length), uirevision: find("#experiment-choice").value,
    }), CONFIG);
  }

  const short = (text) => (text.length > 28 ? `${text.slice(0, 27)}…` : text);

  function drawClients() {
    const one = series[find("#client-method").value] || series[0];
    const order = find("#client-order").value;
    const clients = clientsOf(one).sort((a, b) => a[order] - b[order] || a.client - b.client);
    const centre = clients.length ? mean(clients.map((c) => c.accuracy)) : 0;
    return Plotly.react("clients", [{
      type: "bar", x: clients.map((_, k) => k + 1), y: clients.map((c) => c.accuracy),
      marker: { color: one.colour, line: { width: 0 } },
      text: clients.map((c) => `<b>client ${c.client}</b><br>${c.accuracy.toFixed(2)} % of ${count(c.total, "test sample")}`),
      hovertemplate: "%{text}<extra></extra>", textposition: "none",
    }], layout({
      xaxis: { title: { text: `${count(clients.length, "client")}, ${find("#client-order").selectedOptions[0].text}` }, showgrid: false },
      yaxis: { title: { text: "accuracy (%)" }, range: [0, 104] },
      bargap: clients.length > 60 ? 0 : 0.2, height: 340,
      shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: centre, y1: centre, line: { color: colour("ink"), width: 1, dash: "dot" } }],
      annotations: [{ xref: "paper", x: 0, y: centre, text: `mean ${centre.toFixed(1)}`, showarrow: false, xanchor: "left", yanchor: "bottom",
        bgcolor: colour("card"), font: { size: 11 } }],
      uirevision: `${find("#experiment-choice").value} ${order}`,
    }), CONFIG);
  }

  async function draw() {
    const meant = series;
    await Promise.all([loadPlotly(), loadDetails(data.experiments[find("#experiment-choice").value]?.part ?? "part-0")]);
    if (meant !== series || typeof Plotly === "undefined" || !series.length) return;
    drawCurves();
    drawSpread();
    drawClients();
  }

  // Arrow keys read a picture point by point, plus and minus zoom around that point, 0 shows all.
  function readByKeys(id) {
    const picture = find(`#${id}`);
    const at = { curve: 0, point: 0 };
    picture.addEventListener("keydown", (event) => {
      const readable = (picture.data || []).map((trace, k) => k).filter((k) => picture.data[k].hoverinfo !== "skip");
      if (!readable.length || event.ctrlKey || event.altKey || event.metaKey) return;
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (step) {
        at.curve = (at.curve + step[0] + readable.length) % readable.length;
        const trace = picture.data[readable[at.curve]];
        at.point = Math.min(trace.x.length - 1, Math.max(0, at.point + step[1]));
        Plotly.Fx.hover(picture, [{ curveNumber: readable[at.curve], pointNumber: at.point }]);
        find(`#${id}-read`).textContent = trace.text[at.point]
          .replace(/<br>/g, ", ").replace(/<[^>]*>/g, "")
          .replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
      } else if (event.key === "+" || event.key === "-") {
        const [low, high] = picture._fullLayout.xaxis.range;
        const middle = picture.data[readable[at.curve % readable.length]].x[at.point] ?? (low + high) / 2;
        const half = ((high - low) / 2) * (event.key === "+" ? 0.6 : 1 / 0.6);
        Plotly.relayout(picture, { "xaxis.range": [middle - half, middle + half] });
      } else if (event.key === "0") {
        Plotly.relayout(picture, id === "clients" ? { "xaxis.autorange": true } : { "xaxis.autorange": true, "yaxis.autorange": true });
      } else {
        return;
      }
      event.preventDefault();
    });
    picture.addEventListener("blur", () => { if (picture.data) Plotly.Fx.unhover(picture); });
  }

  // --- runs -------------------------------------------------------------------------------------

  let runs = [];
  let shown = PAGE;
  let picked = null;
  const order = { column: null, direction: "none" };

  const COLUMNS = [
    ["method", (run) => run.method, String],
    ["dataset", (run) => run.dataset, String],
    ["setting", (run) => run.setting, String],
    ["clients", (run) => run.clients, String],
    ["data", (run) => parseFloat(run.share), (share) => `${share} %`],
    ["model", (run) => run.model, String],
    ["rounds", (run) => run.rounds, String],
    ["seed", (run) => run.seed, String],
    ["best (%)", (run) => best(run, "accuracy"), percent],
    ["s per round", (run) => run.secondsPerRound, fixed],
    ["peak GB", (run) => scaled(run.memory, 1e9), fixed],
    ["MB up", (run) => scaled(run.bytesUp, 1e6), (value) => fixed(value, 3)],
    ["MB down", (run) => scaled(run.bytesDown, 1e6), (value) => fixed(value, 3)],
    ["key", (run) => run.key, (key) => key.slice(0, 8)],
  ];
  const TEXT = new Set(["method", "dataset", "setting", "model", "key"]);

  function searchable(run) {
    run.words ??= [run.folder, run.status, run.method, run.dataset, run.setting,
      ...Object.entries(run.config).map(([name, value]) => `${name}=${value}`)].join(" ").toLowerCase();
    return run.words;
  }

  function listRuns() {
    const wanted = find("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    runs = data.runs.filter((run) =>
      (picked ? picked.has(run.key) : matches(run)) && wanted.every((word) => searchable(run).includes(word)));
    if (order.column !== null && order.direction !== "none") {
      const read = COLUMNS[order.column][1];
      const sign = order.direction === "ascending" ? 1 : -1;
      runs = runs.map((run, k) => [run, k])
        .sort(([a, i], [b, j]) => compare(read(a), read(b), sign) || i - j).map(([run]) => run);
    }
    shown = PAGE;
    find("#run-list tbody").replaceChildren(...runs.slice(0, shown).map(runRow));
    countRuns();
  }

  function countRuns() {
    const now = Math.min(shown, runs.length);
    find("#run-count").textContent = runs.length ? `${now} of ${count(runs.length, "run")} shown` : "No run matches.";
    find("#more").hidden = now >= runs.length;
  }

  function runRow(run) {
    const cells = COLUMNS.map(([title, read, show], k) => {
      const text = show(read(run));
      if (k) return make("td", { class: TEXT.has(title) ? null : "number" }, title === "key" ? make("code", {}, text) : text);
      const button = make("button", { type: "button", class: "expand", "aria-expanded": "false", "data-key": run.key }, text);
      const name = make("th", { scope: "row" }, button);
      if (run.status !== "finished") name.append(" ", make("span", { class: "status" }, run.status));
      return name;
    });
    return make("tr", {}, ...cells);
  }

  function expand(button) {
    const row = button.closest("tr");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { row.nextElementSibling.remove(); return; }
    const run = data.runs.find((one) => one.key === button.dataset.key);
    const cell = make("td", { colspan: COLUMNS.length }, "…");
    row.after(make("tr", { class: "detail" }, cell));
    loadDetails(partOf(run)).then(() => cell.replaceChildren(detail(run)));
  }

  function partOf(run) {
    const place = data.runs.indexOf(run);
    return data.experiments.find((one) => one.series.some((each) => each.runs.includes(place))).part;
  }

  // Lines break between words alone: not within a flag, as a browser would at its dashes.
  function code(command) {
    return make("code", {}, ...command.split(" ").flatMap((word) => [make("span", {}, word), " "]));
  }

  function definitions(title, facts) {
    const list = make("dl", { class: "facts" });
    for (const [name, value] of Object.entries(facts)) list.append(make("dt", {}, name), make("dd", {}, value === "null" ? "–" : value));
    return make("div", {}, make("h4", {}, title), list);
  }

  function scoreLine(score) {
    return `${percent(score.accuracy)} % (round ${score.round}); clients ${percent(score.mean_over_clients)} ± `
      + `${percent(score.std_over_clients)}, worst decile ${percent(score.worst_decile)}`;
  }

  function detail(run) {
    const inside = make("div", { class: "inside" });
    if (run.reason) inside.append(make("p", { class: "status" }, `${run.status}: ${run.reason}`));
    for (const sentence of run.advice) inside.append(make("p", { class: "status" }, sentence));
    if (run.reference) inside.append(make("p", { class: "muted" }, `Without training: ${run.reference}`));
    if (run.status === "interrupted") inside.append(make("p", { class: "status" }, `Unfinished after ${count(run.rounds, "round")}; the command continues it.`));
    if (run.command) {
      const button = make("button", { type: "button", class: "copy", "data-copy": run.command }, "Copy");
      inside.append(make("h4", {}, "Command that reproduces it"), make("div", { class: "command" }, code(run.command), button));
      if (run.needs) inside.append(make("p", { class: "muted" }, run.needs));
    }
    const outcome = {};
    if (run.best) outcome["best accuracy"] = scoreLine(run.best);
    if (run.last) outcome["last accuracy"] = scoreLine(run.last);
    if (run.secondsPerRound !== null) outcome.time = `${fixed(run.seconds, 1)} s in all, ${fixed(run.secondsPerRound)} s per round`;
    if (run.memory !== null) outcome["peak memory"] = `${fixed(run.memory / 1e9)} GB`;
    if (run.bytesUp !== null) outcome["per client and round"] = `${fixed(run.bytesUp / 1e6, 3)} MB up, ${fixed(run.bytesDown / 1e6, 3)} MB down`;
    inside.append(definitions("Outcome", { status: run.status, ...outcome, folder: run.folder }));
    if (run.perClient && run.perClient.total.length) inside.append(strip(run));
    const columns = make("div", { class: "columns" }, definitions("Configuration", run.config), definitions("Provenance", run.provenance));
    inside.append(columns);
    return inside;
  }

  // Every client of a run as a bar, lowest first.
  function strip(run) {
    const { correct, total } = run.perClient;
    const accuracies = correct.map((right, k) => right / total[k]).filter(Number.isFinite).sort((a, b) => a - b);
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const width = 1000 / accuracies.length;
    const lowest = `${percent(accuracies[0])} %`;
    const highest = `${percent(accuracies[accuracies.length - 1])} %`;
    const told = `${count(accuracies.length, "client")}, lowest ${lowest}, highest ${highest}`;
    for (const [name, value] of Object.entries({ viewBox: "0 0 1000 100", preserveAspectRatio: "none", class: "strip", role: "img", "aria-label": told })) svg.setAttribute(name, value);
    accuracies.forEach((accuracy, k) => {
      const bar = document.createElementNS(space, "rect");
      const box = { x: k * width, y: 100 - 100 * accuracy, width: width * (accuracies.length > 100 ? 1 : 0.8), height: Math.max(0.5, 100 * accuracy) };
      for (const [name, value] of Object.entries(box)) bar.setAttribute(name, value);
      svg.append(bar);
    });
    return make("div", {}, make("h4", {}, "Accuracy of each client, best round"), svg, make("p", { class: "muted" }, `${told}.`));
  }

  function pick(button) {
    picked = button ? new Set(button.dataset.keys.split(" ")) : null;
    const note = find("#picked");
    note.hidden = !picked;
    if (picked) find("span", note).textContent = `The runs of ${button.dataset.title}.`;
    listRuns();
    if (!picked) return;
    find("#runs-title").focus({ preventScroll: true });
    find("#runs").scrollIntoView();
  }

  function prepareRuns() {
    const head = sortHead(COLUMNS.map(([title]) => title));
    [...head.rows[0].cells].forEach((th, k) => th.classList.toggle("number", !TEXT.has(COLUMNS[k][0])));
    find("#run-list").append(head, make("tbody"));
    head.addEventListener("click", (event) => {
      const th = event.target.closest(".sort")?.parentElement;
      if (!th) return;
      const first = COLUMNS[th.cellIndex][0].startsWith("best") ? "descending" : "ascending";
      order.column = th.cellIndex;
      order.direction = nextOrder(th, first);
      markOrder(th, order.direction);
      listRuns();
    });
    find("#more").addEventListener("click", () => {
      const rows = runs.slice(shown, shown + 2 * PAGE).map(runRow);
      shown += 2 * PAGE;
      find("#run-list tbody").append(...rows);
      find("button", rows[0]).focus();
      countRuns();
    });
    find("#search").addEventListener("input", listRuns);
    find("#picked button").addEventListener("click", () => pick(null));
  }

  // --- beginning --------------------------------------------------------------------------------

  // A table by another metric comes as the page's own did: escaped, with no script in it.
  async function chooseMetric() {
    const score = find("#metric").value;
    const others = await read("others");
    for (const sheet of all(".sheet")) {
      const choices = others[sheet.id];
      if (!choices) continue;
      sheet.own ??= sheet.innerHTML;
      sheet.innerHTML = choices[score] ?? sheet.own;
      all("[data-sortable]", sheet).forEach(sortable);
    }
    applyFilters();
    say(`The tables show: ${find("#metric").selectedOptions[0].text}.`);
  }

  theme();
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.copy !== undefined) copy(button);
    else if (button?.classList.contains("expand")) expand(button);
    else if (button?.dataset.keys) pick(button);
  });
  if (typeof DecompressionStream === "undefined") {
    find("#too-old").hidden = false;
    return;
  }
  data = await read("data");
  if (!data.runs.length) return;
  all("[data-sortable]").forEach(sortable);
  prepareRuns();
  for (const select of all("[data-filter]")) select.addEventListener("change", applyFilters);
  find(".filters").addEventListener("submit", (event) => event.preventDefault());
  find(".filters").addEventListener("reset", () => setTimeout(() => { pick(null); applyFilters(); }));
  find("#sort-by")?.addEventListener("change", () => {
    for (const th of all('.sheet th[aria-sort]:not([aria-sort="none"])')) sortRows(th.closest("table"), th, th.getAttribute("aria-sort"));
  });
  find("#metric")?.addEventListener("change", chooseMetric);
  for (const id of ["experiment-choice", "variants"]) find(`#${id}`).addEventListener("change", chooseExperiment);
  for (const id of ["curve-x", "curve-y", "curve-band"]) find(`#${id}`).addEventListener("change", drawCurves);
  for (const id of ["client-method", "client-order"]) find(`#${id}`).addEventListener("change", drawClients);
  ["curves", "clients"].forEach(readByKeys);
  NARROW.addEventListener("change", draw);
  applyFilters();
})();
