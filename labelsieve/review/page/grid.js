// Many samples at once: a grid of one given and suggested label, in which samples are selected and decided together.
"use strict";

const MAX_CELLS = 1000; // more are shown once these are decided
const NOTHING_SELECTED = "Select samples first: click or press space for one, “Select all” for all of them.";
const selected = new Set(); // sample indices
let cells = []; // samples of the grid
let cursor = 0; // place of the cell with the keyboard focus
let anchor = 0; // place from which a range is selected
let dragging = null; // place at which the mouse was pressed, and whether it has moved to another cell
let pairs = []; // [given, suggested, number of open samples], most frequent first

function countPairs() {
  const counts = new Map();
  for (const sample of samples.filter((one) => isIncluded(one) && isFound(one) && isOpen(one))) {
    const key = JSON.stringify([sample.given, sample.suggested]);
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  pairs = [...counts].map(([key, number]) => [...JSON.parse(key), number]).sort((one, two) => two[2] - one[2]);
}

function fillPairs() {
  countPairs();
  const [given, suggested] = [chosenClass("filter"), chosenClass("suggestion")];
  const names = pairs.map(([one, other, number], k) => new Option(`${one} → ${other} (${count(number)})`, k));
  byId("pair").replaceChildren(new Option("All pairs", ""), ...names);
  const place = pairs.findIndex(([one, other]) => one === given && other === suggested);
  if (place < 0 && given !== undefined && suggested !== undefined) byId("pair").prepend(new Option(`${given} → ${suggested} (0)`, "none"));
  byId("pair").value = place >= 0 ? place : given !== undefined && suggested !== undefined ? "none" : "";
}

function choosePair(pair) {
  byId("filter").value = pair ? classes.indexOf(pair[0]) : "";
  fillSuggestions();
  byId("suggestion").value = pair ? classes.indexOf(pair[1]) : "";
  selected.clear();
  cursor = anchor = 0;
  draw();
}

// Goes to the next or previous pair of labels that has open samples.
function movePair(step) {
  countPairs();
  if (!pairs.length) return announce("No undecided sample is left.");
  const place = pairs.findIndex(([one, other]) => one === chosenClass("filter") && other === chosenClass("suggestion"));
  const next = place < 0 ? 0 : (place + step + pairs.length) % pairs.length;
  choosePair(pairs[next]);
  announce(`${pairs[next][0]}, suggested ${pairs[next][1]}: ${count(cells.length)} samples.`);
}

// Says what the numbers on the cells mean; many suspects share the lowest quality, so that only their order differs.
function orderNote() {
  const lowest = cells.filter(({ shown_quality: shown }) => shown === cells[0].shown_quality).length;
  const shared = lowest > 1 ? ` The first ${count(lowest)} have the lowest quality, ${cells[0].shown_quality}; their order still counts.` : "";
  return `Most suspicious first, with the label quality: the estimated probability that the given label is correct.${shared}`;
}

function drawGrid() {
  fillPairs();
  const listed = samples.filter(isListed);
  cells = listed.slice(0, MAX_CELLS);
  for (const index of selected) if (!cells.some((sample) => sample.index === index)) selected.delete(index);
  cursor = clamp(cursor, 0, Math.max(0, cells.length - 1));
  byId("cells").replaceChildren(...cells.map(cell));
  byId("cells").hidden = !cells.length;
  byId("none").hidden = cells.length > 0;
  if (!cells.length) drawEnd();
  byId("order").textContent = cells.length && kind === "label" ? orderNote() : "";
  byId("more").textContent = listed.length > cells.length ? `${count(listed.length - cells.length)} more follow once these are decided.` : "";
  drawSelection();
}

function cell(sample, place) {
  const decision = shownDecision(sample);
  const words = decision ? `, ${describe(decision, sample)}` : "";
  const made = element("div", { role: "option", id: `cell-${place}`, class: "cell", title: sample.id });
  made.setAttribute("aria-label", `${sample.id}, labelled ${sample.given}, suggested ${sample.suggested}, label quality ${sample.shown_quality}${words}`);
  made.append(preview(sample));
  const labels = byId("pair").value === "" ? [named(`${sample.given} → ${sample.suggested}`)] : [];
  const numbers = kind === "label" ? [`#${count(sample.rank)}`, sample.shown_quality] : []; // the quality is about labels
  const facts = decision ? [describe(decision, sample)] : numbers.map((text) => element("span", {}, text));
  made.append(element("span", { class: "caption" }, ...labels, element("span", { class: "facts" }, ...facts)));
  made.classList.toggle("done", Boolean(decision));
  return made;
}

function preview(sample) {
  if (sample.image) return element("img", { alt: "", loading: "lazy", draggable: false, src: address(ready ? `pictures/${sample.index}?size=small` : `thumbs/${sample.index}`) });
  const text = sample.text ?? Object.entries(sample.row ?? {}).slice(0, 6).map(([name, value]) => `${name}: ${value}`).join("\n");
  return element("span", { class: "words" }, text.slice(0, 240) || sample.id);
}

function drawSelection() {
  for (const [place, made] of [...byId("cells").children].entries()) {
    made.setAttribute("aria-selected", selected.has(cells[place].index));
    made.classList.toggle("cursor", place === cursor);
  }
  if (cells.length) byId("cells").setAttribute("aria-activedescendant", `cell-${cursor}`);
  else byId("cells").removeAttribute("aria-activedescendant");
  const chosen = selected.size;
  byId("chosen").textContent = `${count(chosen)} of ${count(cells.length)} selected`;
  const alike = byId("pair").value !== "" && cells[0]; // all cells have the same labels
  const names = { "accept-all": alike ? `Change to ${alike.suggested}` : "Accept suggestions", "keep-all": alike ? `Keep ${alike.given}` : "Keep labels" };
  for (const [id, name] of Object.entries(names)) byId(id).querySelector("bdi").textContent = byId(id).title = name;
  for (const id of ["keep-all", "accept-all", "other-all", "unsure-all"]) byId(id).disabled = !chosen;
  byId("undo-all").disabled = !lastAction().length;
}

function toggleCell(place, on = !selected.has(cells[place].index)) {
  if (on) selected.add(cells[place].index);
  else selected.delete(cells[place].index);
}

function selectRange(from, to) {
  for (let place = Math.min(from, to); place <= Math.max(from, to); place += 1) toggleCell(place, true);
}

function selectAll() {
  if (selected.size === cells.length) selected.clear();
  else selectRange(0, cells.length - 1);
  drawSelection();
  announce(byId("chosen").textContent);
}

function moveCursor(step, extend) {
  if (!cells.length) return;
  cursor = clamp(cursor + step, 0, cells.length - 1);
  if (extend) selectRange(anchor, cursor);
  else anchor = cursor;
  drawSelection();
  byId(`cell-${cursor}`).scrollIntoView({ block: "nearest" });
}

// Returns the number of cells in a row.
function columnsOfGrid() {
  const tops = [...byId("cells").children].map((made) => made.offsetTop);
  const first = tops.findIndex((top) => top !== tops[0]);
  return first < 0 ? tops.length : first;
}

// Saves one decision about all selected samples as one action, which is undone as one.
async function decideSelected(decision, label) {
  const chosen = cells.filter((sample) => selected.has(sample.index));
  if (!chosen.length) return showNotice(NOTHING_SELECTED);
  const answer = await sendMany(chosen, decision, label);
  if (!answer) return;
  selected.clear();
  const refused = answer.refused.length ? ` ${count(answer.refused.length)} were changed elsewhere and are left as they are.` : "";
  const done = { keep: "kept", accept: "changed as suggested", other: `changed to ${label}`, unsure: "marked unsure" }[decision];
  showNotice(`${count(chosen.length - answer.refused.length)} ${done}.${refused} Press z to undo.`);
  draw();
  if (!cells.length && pairs.length) movePair(1);
}

const GRID_KEYS = {
  k: () => decideSelected("keep"),
  a: () => decideSelected("accept"),
  u: () => decideSelected("unsure"),
  o: () => (selected.size ? pickClass(classes, (name) => decideSelected("other", name)) : showNotice(NOTHING_SELECTED)),
  z: () => undoLast(),
};
const GRID_MOVES = {
  ArrowLeft: (event) => moveCursor(-1, event.shiftKey),
  ArrowRight: (event) => moveCursor(1, event.shiftKey),
  ArrowUp: (event) => moveCursor(-columnsOfGrid(), event.shiftKey),
  ArrowDown: (event) => moveCursor(columnsOfGrid(), event.shiftKey),
  Home: (event) => moveCursor(-cells.length, event.shiftKey),
  End: (event) => moveCursor(cells.length, event.shiftKey),
  " ": () => {
    if (!cells.length) return;
    toggleCell(cursor);
    anchor = cursor;
    drawSelection();
  },
  Enter: () => cells.length && openCell(cursor),
  n: () => movePair(1),
  p: () => movePair(-1),
  Escape: () => (selected.size ? (selected.clear(), drawSelection()) : setView("one")),
};

function openCell(place) {
  const position = positions.get(cells[place].index);
  setView("one", position);
}

function placeOf(target) {
  const made = target.closest?.(".cell");
  return made ? [...byId("cells").children].indexOf(made) : -1;
}

function startGrid() {
  const list = byId("cells");
  list.onpointerdown = (event) => {
    const place = placeOf(event.target);
    if (place >= 0 && event.button === 0 && event.pointerType === "mouse") dragging = { place, moved: false };
  };
  list.onpointerover = (event) => {
    const place = placeOf(event.target);
    if (!dragging || place < 0 || !(event.buttons & 1) || (place === dragging.place && !dragging.moved)) return;
    dragging.moved = true;
    cursor = place;
    selectRange(dragging.place, place);
    drawSelection();
  };
  list.onclick = (event) => {
    const place = placeOf(event.target);
    const dragged = dragging?.moved;
    dragging = null;
    if (place < 0 || dragged) return;
    cursor = place;
    if (event.shiftKey) selectRange(anchor, place);
    else toggleCell((anchor = place));
    drawSelection();
  };
  list.ondblclick = (event) => placeOf(event.target) >= 0 && openCell(placeOf(event.target));
  document.addEventListener("pointerup", () => dragging?.moved && setTimeout(() => (dragging = null)));
  for (const [id, key] of Object.entries({ "keep-all": "k", "accept-all": "a", "other-all": "o", "unsure-all": "u", "undo-all": "z" })) byId(id).onclick = () => saving || GRID_KEYS[key]();
  byId("select-all").onclick = selectAll;
  byId("next-pair").onclick = () => movePair(1);
  byId("pair").onchange = () => choosePair(pairs[byId("pair").value]);
}
