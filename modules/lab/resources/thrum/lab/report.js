"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const narrow = 620;

  const time = ms => ms === 0 ? "0" : ms < 1000 ? `${+ms.toPrecision(3)} ms` : `${(+(ms / 1000).toPrecision(3)).toLocaleString("en").replace(",", "\u00a0")} s`;

  const rate = n => `${n.toLocaleString("en").replaceAll(",", "\u00a0")}/s`;

  const known = rows => rows.flatMap(r => [r.value, r.limit, r.published?.value, r.published?.limit]).filter(v => v > 0);

  const scale = ({rows, logarithmic}, range) => {
    const [low, high] = d3.extent(known(rows));
    return logarithmic
      ? d3.scaleLog([Math.pow(10, Math.floor(Math.log10(low * 0.9) * 2) / 2), high], range)
      : d3.scaleLinear([0, high], range);
  };

  const ticks = (x, width) => x.base
    ? x.ticks(4).filter(v => Math.abs(Math.log10(v) % 1) < 1e-9)
    : x.ticks(Math.max(2, Math.round(width / 130)));

  const status = r => `row${r.thrum ? " thrum" : ""}${r.virtual ? " virtual" : ""} ${r.verdict}`;

  const axis = (svg, x, values, show, top, bottom) => {
    const g = svg.append("g").attr("class", "axis").selectAll("g").data(values).join("g")
      .attr("transform", v => `translate(${x(v)},0)`);
    g.append("line").attr("y1", top).attr("y2", bottom);
    g.append("text").attr("y", bottom + 16).attr("text-anchor", v => x(v) < 20 ? "start" : "middle").text(show);
  };

  const published = (g, x, y) => {
    const p = g.filter(r => r.published).append("g").attr("class", "published").attr("transform", `translate(0,${y})`);
    p.append("line").attr("x1", x.range()[0]).attr("x2", r => x(r.published.value) - 5);
    p.append("line").attr("class", "tick").attr("x1", r => x(r.published.limit)).attr("x2", r => x(r.published.limit)).attr("y1", -6).attr("y2", 6);
    p.append("path").attr("d", d3.symbol(d3.symbolDiamond, 46)).attr("transform", r => `translate(${x(r.published.value)},0)`);
    p.append("text").attr("x", r => Math.max(x(r.published.value), x(r.published.limit)) + 10).attr("dy", "0.35em").text(r => r.published.label);
  };

  const bars = (node, part) => {
    const rows = part.rows;
    const width = node.clientWidth, small = width < narrow;
    const left = small ? 0 : 236, right = !small ? 190 : rows.some(r => r.published) ? 118 : 12, bar = 20;
    const nameRoom = small ? 20 : 0, labelRoom = small ? 18 : 0;
    const heights = rows.map(r => nameRoom + bar + labelRoom + (r.published ? 20 : 0) + 14);
    const tops = heights.map((_, i) => d3.sum(heights.slice(0, i)));
    const total = d3.sum(heights);
    const x = scale(part, [left, width - right]), at = value => value > 0 ? x(value) : left;
    const svg = d3.create("svg").attr("height", total + 26).attr("viewBox", `0 0 ${width} ${total + 26}`);
    axis(svg, x, ticks(x, width - left - right), part.unit === "/s" ? rate : time, 0, total);
    const g = svg.append("g").selectAll("g").data(rows).join("g").attr("class", status)
      .attr("transform", (_, i) => `translate(0,${tops[i]})`);
    g.append("text").attr("class", "name").attr("x", 0).attr("y", small ? 14 : bar / 2).attr("dy", small ? 0 : "0.35em").text(r => r.name);
    g.append("rect").attr("class", "bar").attr("x", left).attr("y", nameRoom).attr("height", bar).attr("rx", 3)
      .attr("width", r => Math.max(2, at(r.value) - left));
    g.filter(r => r.limit).append("line").attr("class", "limit").attr("x1", r => x(r.limit)).attr("x2", r => x(r.limit))
      .attr("y1", nameRoom - 3).attr("y2", nameRoom + bar + 3);
    g.append("text").attr("class", "value").attr("x", r => small ? 0 : Math.max(at(r.value), r.limit ? x(r.limit) : 0) + 9)
      .attr("y", small ? nameRoom + bar + 12 : bar / 2).attr("dy", "0.35em").text(r => r.label);
    published(g, x, nameRoom + bar + labelRoom + 11);
    node.replaceChildren(svg.node());
  };

  const flight = (width, most) => r => {
    const height = 118, top = 40, bottom = 94;
    const x = d3.scaleLinear([0, r.flight.ms], [0, width]), y = d3.scaleLinear([0, most], [bottom, top]);
    const points = [[0, 0], ...r.flight.curve, [r.flight.ms, 0]];
    const shape = c => c.x(p => x(p[0])).curve(d3.curveStepAfter);
    const svg = d3.create("svg").attr("height", height).attr("viewBox", `0 0 ${width} ${height}`);
    const g = svg.append("g").attr("class", status(r));
    g.append("text").attr("class", "name").attr("y", 12).text(r.name);
    g.append("text").attr("class", "small").attr("y", 28).text(`${r.flight.peak.toLocaleString("en").replace(",", "\u00a0")} at once`);
    g.append("line").attr("class", "base").attr("x2", width).attr("y1", bottom).attr("y2", bottom);
    g.append("path").attr("class", "area").attr("d", shape(d3.area()).y0(bottom).y1(p => y(p[1]))(points));
    g.append("path").attr("class", "edge").attr("d", shape(d3.line()).y(p => y(p[1]))(points));
    if (r.flight.answer) {
      g.append("line").attr("class", "answer").attr("x1", x(r.flight.answer)).attr("x2", x(r.flight.answer)).attr("y1", top - 4).attr("y2", bottom);
    }
    g.append("text").attr("class", "small").attr("y", bottom + 16).text("0");
    g.append("text").attr("class", "small").attr("x", width).attr("y", bottom + 16).attr("text-anchor", "end").text(r.flight.end);
    return svg.node();
  };

  const flights = (node, part) => {
    const shown = part.rows.filter(r => r.flight), most = d3.max(shown, r => r.flight.peak) || 1;
    const columns = getComputedStyle(node).gridTemplateColumns.split(" ");
    node.replaceChildren(...shown.map(flight(parseFloat(columns[0]) || 220, most)));
  };

  const apart = (labels, gap) => {
    labels.sort((a, b) => a.y - b.y);
    labels.forEach((label, i) => { if (i) label.y = Math.max(label.y, labels[i - 1].y + gap); });
    return labels;
  };

  const crowds = (node, part) => {
    const rows = part.rows.filter(r => r.points);
    if (!rows.length) return;
    const width = node.clientWidth, small = width < narrow;
    const left = 58, right = small ? 96 : 190, top = 14, bottom = 262;
    const x = d3.scaleLog(d3.extent(rows[0].points, p => p[0]), [left, width - right]);
    const [low, high] = d3.extent(rows.flatMap(r => [...r.points, ...r.limits]), p => p[1]);
    const y = d3.scaleLog([low * 0.85, high * 1.1], [bottom, top]);
    const svg = d3.create("svg").attr("height", bottom + 44).attr("viewBox", `0 0 ${width} ${bottom + 44}`);
    axis(svg, x, rows[0].points.map(p => p[0]), n => n, top, bottom);
    svg.append("g").attr("class", "axis").append("text").attr("x", (left + width - right) / 2).attr("y", bottom + 38).attr("text-anchor", "middle").text("requests at once");
    const levels = svg.append("g").attr("class", "axis").selectAll("g").data(y.ticks(6).filter(v => [1, 2, 5].includes(+String(v)[0]))).join("g")
      .attr("transform", v => `translate(0,${y(v)})`);
    levels.append("line").attr("x1", left).attr("x2", width - right);
    levels.append("text").attr("x", left - 8).attr("dy", "0.35em").attr("text-anchor", "end").text(time);
    const line = d3.line().x(p => x(p[0])).y(p => y(p[1]));
    const g = svg.append("g").selectAll("g").data(rows).join("g").attr("class", status);
    g.append("path").attr("class", "best").attr("d", r => line(r.limits));
    g.append("path").attr("class", "edge").attr("d", r => line(r.points));
    g.selectAll("circle").data(r => r.points).join("circle").attr("r", 3.5).attr("cx", p => x(p[0])).attr("cy", p => y(p[1]));
    const labels = apart(rows.map(row => ({row, y: y(row.points.at(-1)[1])})), 17);
    svg.append("g").selectAll("g").data(labels).join("g").attr("class", l => status(l.row)).append("text").attr("class", "name")
      .attr("x", width - right + 10).attr("y", l => l.y).attr("dy", "0.35em").text(l => small ? l.row.name.replace(" threads", "") : l.row.name);
    node.replaceChildren(svg.node());
  };

  const draw = () => {
    for (const [kind, chart] of [["bars", bars], ["flights", flights], ["crowds", crowds]]) {
      for (const node of document.getElementsByClassName(kind)) {
        const part = data[node.dataset.part];
        if (part?.rows.length) chart(node, part);
      }
    }
  };

  draw();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; draw(); }
  });
})();
