// Elements of the page. Text goes in as text: nothing here, or anywhere, is parsed as HTML.

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Text, only where it has changed, so that selections and a reader's place stay.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Columns and rows of text or elements; the first column names the row.
export function fillTable(table, columns, rows) {
  const head = columns.map((name) => element("th", { scope: "col" }, name));
  const body = rows.map(([name, ...cells]) => element("tr", {},
    element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))));
  const shown = table.tBodies[0];
  table.hidden = rows.length === 0;
  if (table.tHead?.textContent !== columns.join("")) {
    const caption = table.caption;
    table.replaceChildren(...(caption ? [caption] : []),
      element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
    return;
  }
  for (const [at, row] of body.entries()) {
    const old = shown.rows[at];
    if (old === undefined) shown.append(row);
    else if (!old.isEqualNode(row)) old.replaceWith(row);
  }
  while (shown.rows.length > body.length) shown.lastElementChild.remove();
}
