// Dialog to choose a class: typing narrows the list.
"use strict";

const MAX_LISTED = 50;

// Removes case and diacritics: "mantel" finds "Mäntel".
const plain = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replaceAll("ß", "ss").replaceAll("ø", "o");

// Returns the classes that contain the text, first those that begin with it.
function matching(classes, text) {
  const wanted = plain(text.trim());
  const rank = (name) => {
    const candidate = plain(name);
    const start = candidate.indexOf(wanted);
    return start < 0 ? -1 : start === 0 ? 0 : /[\p{L}\p{N}]/u.test(candidate[start - 1]) ? 2 : 1;
  };
  const found = classes.map((name) => [rank(name), name]).filter(([order]) => order >= 0);
  return found.sort((one, two) => one[0] - two[0]).map(([, name]) => name);
}

// Opens the dialog and calls `choose` with the selected class; not if it is cancelled.
function pickClass(classes, choose, title = "Choose the correct class") {
  const [dialog, search, list, rest] = ["picker", "search", "matches", "rest"].map((id) => document.getElementById(id));
  let found = [];
  let selected = 0;

  const select = (position) => {
    selected = Math.max(0, Math.min(position, list.children.length - 1));
    for (const [k, item] of [...list.children].entries()) item.setAttribute("aria-selected", k === selected);
    search.setAttribute("aria-activedescendant", list.children[selected]?.id ?? "");
    list.children[selected]?.scrollIntoView({ block: "nearest" });
  };
  const take = (name) => {
    if (name === undefined) return;
    dialog.close();
    choose(name);
  };
  const item = (name, position) => {
    const line = document.createElement("li");
    const text = document.createElement("bdi");
    text.textContent = name;
    line.append(text);
    line.id = `match-${position}`;
    line.setAttribute("role", "option");
    line.onclick = () => take(name);
    return line;
  };
  const narrow = () => {
    found = matching(classes, search.value);
    list.replaceChildren(...found.slice(0, MAX_LISTED).map(item));
    const more = found.length - MAX_LISTED;
    rest.textContent = found.length === 0 ? "No matching class" : more > 0 ? `And ${more.toLocaleString("en")} more; type to narrow the list` : "";
    select(0);
  };

  search.oninput = narrow;
  search.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      select(selected + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!event.repeat) take(found[selected]);
    }
  };
  search.value = "";
  document.getElementById("picker-title").textContent = title;
  dialog.showModal();
  narrow();
  search.focus();
}
