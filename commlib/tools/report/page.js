// A button in each head of a table sorts its lines; what has no number comes last, as text.
const SCALES = { k: 1e3, K: 1024, M: 1048576, G: 1073741824 };
const number = (text) => {
  const found = /^[~≤<]?\s*(-?\d[\d.]*(?:e[+-]?\d+)?)\s*([kKMG]?)/.exec(text);
  return found ? parseFloat(found[1]) * (SCALES[found[2]] || 1) : null;
};
const order = (a, b, way) => {
  const [x, y] = [number(a), number(b)];
  if ((x === null) !== (y === null)) return x === null ? 1 : -1;
  return (x === null ? a.localeCompare(b, undefined, { numeric: true }) : x - y) * way;
};
const sort = (table, head) => {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const rows = [...table.tBodies[0].rows].sort((a, b) => order(text(a), text(b), down ? -1 : 1));
  table.tBodies[0].append(...rows);
};
for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length < 2) continue;
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, head));
    head.append(button);
    head.setAttribute("aria-sort", "none");
  }
}
