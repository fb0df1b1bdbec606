// Draws the data of the page (flamegraph.py says what it holds) with d3-flame-graph.
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colours = {
    python: [[78, 154, 6], [138, 204, 86]],
    native: [[233, 154, 32], [250, 200, 110]],
    interpreter: [[104, 151, 203], [160, 196, 232]],
    kernel: [[214, 84, 74], [240, 140, 128]],
  };
  const found = "#d63bd6";

  // The kind says the colour, the name the shade, so that neighbours differ and a function keeps its own.
  function colour(frame) {
    const [dark, light] = colours[data.kindNames[frame[2]]];
    let hash = 0;
    for (const character of frame[0]) hash = (hash * 31 + character.codePointAt(0)) % 1009;
    return "rgb(" + dark.map((value, at) => Math.round(value + (light[at] - value) * hash / 1008)).join() + ")";
  }

  function percent(weight) {
    return (100 * weight / data.total).toFixed(2) + "%";
  }

  function amount(weight) {
    if (data.unit === "ns") return (weight / 1e9).toFixed(3) + " s";
    return weight.toLocaleString("en") + " " + data.unit;
  }

  function tree() {
    const root = { name: "all", value: data.total, children: [], frame: ["all", "", -1] };
    const path = [root];
    const shades = data.frames.map(colour);
    for (let at = 0; at < data.nodes.length; at += 3) {
      const depth = data.nodes[at], frame = data.frames[data.nodes[at + 1]];
      const node = { name: frame[0], value: data.nodes[at + 2], children: [], frame: frame,
        colour: shades[data.nodes[at + 1]] };
      path.length = depth + 1;
      path[depth].children.push(node);
      path.push(node);
    }
    return root;
  }

  function describe(d) {
    const [name, place, kind] = d.data.frame;
    const words = [name];
    if (place) words.push(place);
    if (kind >= 0) words.push(data.kindNames[kind]);
    return words.join("  ·  ") + "  ·  " + percent(d.data.value) + ", " + amount(d.data.value);
  }

  function element(id) { return document.getElementById(id); }

  element("title").textContent = data.title;
  element("subtitle").textContent = data.subtitle + ", " + amount(data.total);
  for (const kind of data.kindNames) {
    const item = document.createElement("li"), box = document.createElement("i"), share = document.createElement("b");
    box.style.background = "rgb(" + colours[kind][0].join() + ")";
    share.textContent = percent(data.kinds[kind]);
    item.dataset.kind = kind;
    item.append(box, kind + " ", share);
    element("kinds").append(item);
  }

  const details = element("details");
  const root = tree();
  const chart = flamegraph.default()
    .width(Math.max(400, document.documentElement.clientWidth - 32))
    .cellHeight(18)
    .minFrameSize(0.5)
    .transitionDuration(0)
    .inverted(!data.rootBelow)
    .sort(true)
    .setColorMapper((d) => d.highlight ? found : d.data.colour || "#ddd")
    .setLabelHandler(describe)
    .setSearchMatch((d, term) => (d.data.name + " " + d.data.frame[1]).toLowerCase().includes(term.toLowerCase()))
    .setSearchHandler((results, sum) => {
      element("found").textContent = results.length + " frames found, " + percent(sum) + " of the time";
    })
    .setDetailsHandler((text) => { details.textContent = text || ""; });
  d3.select("#chart").datum(root).call(chart);

  function search() {
    const term = element("term").value.trim();
    if (term) {
      chart.search(term);
    } else {
      chart.clear();
      element("found").textContent = "";
    }
    history.replaceState(null, "", term ? "#search=" + encodeURIComponent(term) : "#");
  }
  element("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  element("clear").addEventListener("click", () => { element("term").value = ""; search(); });
  element("reset").addEventListener("click", () => chart.resetZoom());
  element("flip").addEventListener("click", () => { chart.inverted(!chart.inverted()); chart.update(); });
  addEventListener("resize", () => {
    chart.width(Math.max(400, document.documentElement.clientWidth - 32));
    chart.update();
  });

  // A search can be part of a link: flamegraph.html#search=name
  const linked = /^#search=(.*)$/.exec(location.hash);
  if (linked) {
    element("term").value = decodeURIComponent(linked[1]);
    search();
  }
})();
