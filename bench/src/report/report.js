"use strict";

// Sorting: by data-sort where a cell has one, else by text; cells without a number stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("thead th")];
  const body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.sort;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x !== undefined && y !== undefined) return (up ? 1 : -1) * (x - y);
      if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
      return (up ? 1 : -1) * a.cells[column].textContent.localeCompare(b.cells[column].textContent);
    });
    body.append(...rows);
  }));
}

const svg = document.getElementById("dataflow");
if (svg) {
  const whole = svg.viewBox.baseVal;
  const facts = JSON.parse(document.getElementById("graph-facts").textContent);
  const panel = document.getElementById("facts");
  let view = null;

  const show = (next) => {
    view = next;
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
  };
  const size = { w: whole.width, h: whole.height };
  const margin = 16;
  const fit = () => show({ x: -margin, y: -margin, w: size.w + 2 * margin, h: size.h + 2 * margin });
  // All of it is seen on opening. A tall graph gets a taller place, so that less of the width is lost.
  const begin = () => {
    const frame = svg.parentElement, box = svg.getBoundingClientRect();
    const wanted = box.width * (size.h + 2 * margin) / (size.w + 2 * margin);
    frame.style.height = `${Math.round(Math.min(Math.max(wanted, 420), Math.max(680, window.innerHeight * 0.85)))}px`;
    fit();
  };
  const point = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const zoom = (factor, at) => {
    const scale = Math.min(Math.max(view.w / factor, 120), size.w * 6) / view.w;
    show({ x: at.x - (at.x - view.x) * scale, y: at.y - (at.y - view.y) * scale, w: view.w * scale, h: view.h * scale });
  };
  begin();

  // The page scrolls past the graph unless the graph was clicked first or Ctrl is held.
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !svg.contains(document.activeElement)) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0015), point(event));
  }, { passive: false });

  let drag = null;
  svg.addEventListener("pointerdown", (event) => {
    drag = { at: point(event), moved: false, node: event.target.closest(".node") };
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const now = point(event);
    const [dx, dy] = [now.x - drag.at.x, now.y - drag.at.y];
    if (!drag.moved && Math.hypot(dx, dy) * svg.getScreenCTM().a < 4) return;
    drag.moved = true;
    svg.classList.add("dragging");
    show({ ...view, x: view.x - dx, y: view.y - dy });
  });
  const release = () => {
    if (drag && !drag.moved) select(drag.node);
    drag = null;
    svg.classList.remove("dragging");
  };
  svg.addEventListener("pointerup", release);
  svg.addEventListener("pointercancel", () => { drag = null; svg.classList.remove("dragging"); });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      if (button.dataset.zoom === "fit") fit();
      else zoom(Number(button.dataset.zoom), { x: view.x + view.w / 2, y: view.y + view.h / 2 });
    });
  }
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      event.preventDefault();
      show({ ...view, x: view.x + step[0] * view.w / 10, y: view.y + step[1] * view.h / 10 });
    } else if (event.key === "+" || event.key === "-") {
      zoom(event.key === "+" ? 1.3 : 0.77, { x: view.x + view.w / 2, y: view.y + view.h / 2 });
    } else if (event.key === "Enter") {
      select(event.target.closest(".node"));
    }
  });

  // Text nodes only: names come from recipes.
  const element = (name, text) => Object.assign(document.createElement(name), { textContent: text ?? "" });
  const select = (node) => {
    svg.querySelectorAll(".selected").forEach((s) => s.classList.remove("selected"));
    if (!node) return;
    const index = node.dataset.node;
    node.classList.add("selected");
    svg.querySelectorAll(`.edge[data-from="${index}"], .edge[data-to="${index}"]`).forEach((e) => e.classList.add("selected"));
    const fact = facts[index];
    const list = element("dl");
    for (const [key, value] of fact.rows) list.append(element("dt", key), element("dd", value));
    panel.replaceChildren(element("h4", fact.label), list);
    for (const [title, edges] of [["reads", fact.reads], ["writes", fact.writes]]) {
      if (!edges.length) continue;
      panel.append(element("h5", title));
      for (const edge of edges) {
        const line = element("div", `${edge.tensor}  ${edge.bytes} `);
        if (edge.memlet) line.append(element("code", edge.memlet));
        panel.append(line);
      }
    }
  };
}
