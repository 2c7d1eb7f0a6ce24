// Makes every table sortable by its columns, with mouse and keyboard. Without it the page is complete, only not sortable.
"use strict";

function inOrder(a, b, numeric) {
  return numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
}

function sortBy(header) {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const column = header.cellIndex;
  const numeric = header.classList.contains("number");
  const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const keyOf = (row) => row.cells[column].dataset.sort;
  const rows = Array.from(body.rows);
  // What is missing stays at the end, whichever way the others go.
  const known = rows.filter((row) => keyOf(row) !== "");
  const missing = rows.filter((row) => keyOf(row) === "");
  const sign = direction === "ascending" ? 1 : -1;
  known.sort((a, b) => sign * inOrder(keyOf(a), keyOf(b), numeric));
  body.append(...known, ...missing);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
}

for (const header of document.querySelectorAll("thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  button.addEventListener("click", () => sortBy(header));
  header.append(button);
}
