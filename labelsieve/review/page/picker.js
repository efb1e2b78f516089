// A list of classes that narrows as one types.
"use strict";

const MOST_SHOWN = 50;

// Without case and diacritics: Mäntel is found by mantel.
const plain = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replaceAll("ß", "ss").replaceAll("ø", "o");

// The classes that contain the words: those that begin with them first.
function matching(classes, words) {
  const wanted = plain(words.trim());
  const rank = (name) => {
    const text = plain(name);
    const at = text.indexOf(wanted);
    return at < 0 ? -1 : at === 0 ? 0 : /[\p{L}\p{N}]/u.test(text[at - 1]) ? 2 : 1;
  };
  const found = classes.map((name) => [rank(name), name]).filter(([place]) => place >= 0);
  return found.sort((one, two) => one[0] - two[0]).map(([, name]) => name);
}

// Opens the list; `choose` is called with the class that was taken, if one was.
function pick(classes, choose) {
  const [dialog, search, list, rest] = ["picker", "search", "matches", "rest"].map((id) => document.getElementById(id));
  let found = [];
  let place = 0;

  const point = (to) => {
    place = Math.max(0, Math.min(to, list.children.length - 1));
    for (const [at, item] of [...list.children].entries()) item.setAttribute("aria-selected", at === place);
    search.setAttribute("aria-activedescendant", list.children[place]?.id ?? "");
    list.children[place]?.scrollIntoView({ block: "nearest" });
  };
  const take = (name) => {
    if (name === undefined) return;
    dialog.close();
    choose(name);
  };
  const item = (name, at) => {
    const line = document.createElement("li");
    const text = document.createElement("bdi");
    text.textContent = name;
    line.append(text);
    line.id = `match-${at}`;
    line.setAttribute("role", "option");
    line.onclick = () => take(name);
    return line;
  };
  const narrow = () => {
    found = matching(classes, search.value);
    list.replaceChildren(...found.slice(0, MOST_SHOWN).map(item));
    const more = found.length - MOST_SHOWN;
    rest.textContent = found.length === 0 ? "no such class" : more > 0 ? `and ${more.toLocaleString("en")} more: type to narrow` : "";
    point(0);
  };

  search.oninput = narrow;
  search.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      point(place + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!event.repeat) take(found[place]);
    }
  };
  search.value = "";
  dialog.showModal();
  narrow();
  search.focus();
}
