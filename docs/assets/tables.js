// Names the column in each cell of a table with three or more columns: site.css shows the cells of a row below each
// other on a phone, each with this name. Without scripts the table scrolls in its own frame.
document.querySelectorAll(".md-content table:not([class])").forEach((table) => {
  const columns = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  if (columns.length < 3) return;
  table.dataset.stacked = "";
  table.querySelectorAll("tbody tr").forEach((row) =>
    [...row.cells].forEach((cell, number) => (cell.dataset.column = columns[number])),
  );
});
