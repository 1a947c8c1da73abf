for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = head.closest("table").tBodies[0];
    const rising = head.getAttribute("aria-sort") !== "ascending";
    const key = (row) => row.cells[head.cellIndex].dataset.by;
    const order = (a, b) => (isNaN(key(a)) || isNaN(key(b)) ? key(a).localeCompare(key(b)) : key(a) - key(b));
    const rows = [...body.rows].sort((a, b) => (rising ? order(a, b) : order(b, a)));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    body.append(...rows);
  });
}
