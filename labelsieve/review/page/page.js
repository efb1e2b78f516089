// One suspect at a time: shown, decided, saved, and only then the next.
"use strict";

const AHEAD = 8; // samples in the strip, whose images are there before they are needed
const POLL = 2000; // milliseconds between two looks at what other tabs decided
const PAUSE = 200; // milliseconds after a sample appears in which keys still mean the one before it

const at = (id) => document.getElementById(id);
const tab = (sessionStorage.tab ??= crypto.randomUUID());
const images = new Map();
let suspects = []; // the most suspicious first; those that are no issue come after the real suspects
let classes = [];
let place = new Map(); // index of a sample -> where it is in `suspects`
let decided = new Map(); // index of a sample -> what stands
let version = 0; // lines of the log that this page knows
let now = 0; // which of the suspects is shown; -1 if none
let beyond = sessionStorage.beyond === "yes"; // whether this tab goes on after the real suspects
let saving = false;
let since = 0; // when it appeared
let polling = 0;

const count = (number) => number.toLocaleString("en");
const isUnsure = (suspect) => decided.get(suspect.index)?.decision === "unsure";
const isOpen = (suspect) => !decided.has(suspect.index);
const inClass = (suspect) => at("filter").value === "" || suspect.given === classes[at("filter").value];
const isMarked = (suspect) => suspect.is_issue;
const isNext = (suspect) => !suspect.is_issue;
const isWanted = (suspect) => beyond || isMarked(suspect);
const isListed = (suspect) => isWanted(suspect) && inClass(suspect) && (!at("open").checked || isOpen(suspect));

function said(decision, suspect) {
  if (decision.decision === "keep") return `kept as ${suspect.given}`;
  if (decision.decision === "unsure") return `unsure, stays ${suspect.given}`;
  return `changed to ${decision.label}`;
}

// The nearest sample in one direction that fits, or -1.
function seek(from, step, fits) {
  for (let where = from; where >= 0 && where < suspects.length; where += step) if (fits(suspects[where])) return where;
  return -1;
}

function nextOpen(from) {
  const fits = (suspect) => isWanted(suspect) && inClass(suspect) && isOpen(suspect);
  const ahead = seek(from, 1, fits);
  return ahead >= 0 ? ahead : seek(0, 1, fits);
}

function announce(text) {
  at("live").textContent = text;
}

function sentence(words) {
  return `${words[0].toUpperCase()}${words.slice(1)}${words.endsWith(".") ? "" : "."}`;
}

function complain(text) {
  at("problem").textContent = text;
  at("problem").hidden = !text;
  if (text) at("notice").hidden = true;
}

function tell(text) {
  at("notice").textContent = text;
  at("notice").hidden = !text;
}

function image(suspect) {
  if (!images.has(suspect.index)) {
    const picture = new Image();
    picture.alt = "the sample";
    picture.draggable = false;
    picture.src = address(`thumbs/${suspect.index}`);
    images.set(suspect.index, picture);
  }
  return images.get(suspect.index);
}

function table(row) {
  const lines = Object.entries(row).map(([name, value]) => {
    const line = document.createElement("tr");
    for (const [kind, text] of [["th", name], ["td", typeof value === "string" ? value : JSON.stringify(value)]]) {
      const cell = document.createElement(kind);
      const isolated = document.createElement("bdi");
      isolated.textContent = text;
      cell.append(isolated);
      line.append(cell);
    }
    return line;
  });
  const whole = document.createElement("table");
  whole.append(...lines);
  return whole;
}

function content(suspect) {
  if (suspect.image) return image(suspect);
  if (suspect.row) return table(suspect.row);
  const text = document.createElement("p");
  text.textContent = suspect.text ?? "nothing to show of this sample";
  return text;
}

function drawSample() {
  const suspect = suspects[now];
  at("sample").hidden = !suspect;
  at("none").hidden = Boolean(suspect);
  if (!suspect) return drawEnd();
  at("view").className = suspect.image ? "picture" : suspect.row ? "row" : "text";
  at("view").replaceChildren(content(suspect));
  const alike = isMarked(suspect) ? isMarked : isNext;
  const number = suspects.slice(0, now + 1).filter(alike).length;
  at("place").firstElementChild.textContent = `${count(number)} of ${count(suspects.filter(alike).length)}${isMarked(suspect) ? " suspects" : " after the suspects · not marked, probably right"}`;
  at("given").textContent = suspect.given;
  at("suggested").textContent = suspect.suggested === suspect.given ? "none" : suspect.suggested;
  at("quality").hidden = suspect.quality === null;
  at("meter").value = suspect.quality ?? 0;
  at("number").textContent = suspect.quality === null ? "" : suspect.quality.toFixed(2);
  at("why").textContent = suspect.why;
  at("name").firstElementChild.textContent = suspect.id;
  at("keep").querySelector("bdi").textContent = suspect.given;
  at("accept").querySelector("bdi").textContent = suspect.suggested;
  at("accept").disabled = suspect.suggested === suspect.given;
  drawDecision(suspect);
}

// Nothing is left to show: what is done, and what can be done next.
function drawEnd() {
  const marked = suspects.filter(isMarked).length;
  const next = suspects.filter((suspect) => isNext(suspect) && isOpen(suspect)).length;
  const left = suspects.some((suspect) => isWanted(suspect) && isOpen(suspect));
  const unsure = suspects.filter((suspect) => isWanted(suspect) && isUnsure(suspect)).length;
  const gone = unsure ? `gone through, ${count(unsure)} of them unsure` : "decided";
  const here = at("filter").value === "" ? "" : " of this class";
  const written = "Export labels writes them to a file for labelsieve train --labels.";
  at("none").firstElementChild.textContent = left
    ? `No sample${here} is left to decide. Choose another class, or turn off “only undecided”.`
    : !marked && !beyond
      ? "There are no suspects: no label is marked as probably wrong."
      : beyond
        ? `All samples are ${gone}. ${written}`
        : `Done: all ${count(marked)} suspects are ${gone}. ${written}`;
  at("beyond").hidden = left || beyond || !next;
  at("beyond").textContent = `${marked ? "Go on with the next" : "Look at the"} ${count(next)} most suspicious, which are probably right`;
  if (!at("beyond").hidden) at("beyond").focus();
}

function goBeyond() {
  beyond = true;
  sessionStorage.beyond = "yes";
  fillFilter();
}

function drawDecision(suspect) {
  const decision = decided.get(suspect.index);
  at("decided").textContent = decision
    ? ` · ${said(decision, suspect)}${decision.tab === tab ? "" : ", earlier or in another tab"}`
    : "";
  for (const kind of ["keep", "accept", "other", "unsure"]) {
    at(kind).setAttribute("aria-pressed", decision?.decision === kind);
  }
  at("undo").disabled = !decision && lastOfMine() === undefined;
}

function drawStrip() {
  const coming = [];
  for (let where = now; coming.length < AHEAD; ) {
    where = seek(where + 1, 1, isListed);
    if (where < 0) break;
    coming.push(where);
  }
  at("strip").replaceChildren(...coming.map(stripButton));
  const near = new Set([...coming, now, now - 1].map((where) => suspects[where]?.index));
  for (const index of images.keys()) if (!near.has(index)) images.delete(index);
}

function words(text) {
  const first = document.createElement("span");
  first.className = "words";
  first.textContent = text.slice(0, 80);
  return first;
}

function stripButton(where) {
  const suspect = suspects[where];
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-label", `sample ${where + 1}: labelled ${suspect.given}`);
  if (suspect.image) button.append(image(suspect).cloneNode());
  else if (suspect.text !== null) button.append(words(suspect.text));
  const label = document.createElement("bdi");
  label.textContent = suspect.given;
  button.append(label);
  button.classList.toggle("done", decided.has(suspect.index));
  button.onclick = () => show(where);
  return button;
}

function drawProgress() {
  const part = (those) => [those.filter((suspect) => !isOpen(suspect)).length, those.filter(isUnsure).length, those.length];
  const doubtful = (unsure) => (unsure ? `, ${count(unsure)} unsure` : "");
  const [done, unsure, marked] = part(suspects.filter(isMarked));
  const [more, unsureMore, next] = part(suspects.filter(isNext));
  const changed = suspects.filter((s) => (decided.get(s.index)?.label ?? s.given) !== s.given).length;
  const left = suspects.filter((s) => isWanted(s) && inClass(s) && isOpen(s)).length;
  const here = at("filter").value === "" ? "" : ` · ${count(left)} left in this class`;
  const after = beyond || more ? ` · ${count(more - unsureMore)} of the next ${count(next)}${doubtful(unsureMore)}` : "";
  at("progress").textContent = `${count(done - unsure)} of ${count(marked)} suspects decided${doubtful(unsure)}${after} · ${count(changed)} changed${here}`;
  at("bar").value = (beyond ? more / next : done / marked) || 0;
}

function show(where, before = "") {
  now = where;
  if (!beyond && suspects[now] && isNext(suspects[now])) goBeyond();
  since = performance.now();
  drawSample();
  drawStrip();
  drawProgress();
  const suspect = suspects[now];
  announce(suspect ? `${before} Sample ${now + 1}: labelled ${suspect.given}, suggested ${suspect.suggested}.` : `${before} ${at("none").firstElementChild.textContent}`);
}

function move(step) {
  const where = seek(now < 0 ? (step > 0 ? 0 : suspects.length - 1) : now + step, step, isListed);
  if (where >= 0) show(where);
  else announce(step > 0 ? "This is the last sample." : "This is the first sample.");
}

// Takes in what the server knows more; the sample that is shown stays.
function learn(answer) {
  if (answer.version < version) return location.reload(); // the file was replaced
  for (const [index, decision] of Object.entries(answer.changed)) {
    if (decision) decided.set(Number(index), decision);
    else decided.delete(Number(index));
  }
  version = answer.version;
}

async function send(suspect, decision, label) {
  if (saving) return false;
  saving = true;
  const over = decided.get(suspect.index)?.line ?? null;
  const answer = await ask("decide", { index: suspect.index, decision, label, over, since: version, tab });
  saving = false;
  if (answer.version !== undefined) learn(answer);
  if (answer.status === 200) {
    complain("");
    tell("");
    return true;
  }
  complain(`Not saved. ${sentence(answer.error)}`);
  drawSample();
  drawStrip();
  drawProgress();
  return false;
}

async function decide(suspect, decision, label) {
  if (!suspect || !(await send(suspect, decision, label))) return;
  show(nextOpen(place.get(suspect.index) + 1), `${said(decided.get(suspect.index), suspect)}.`);
}

function lastOfMine() {
  const mine = [...decided].filter(([index, decision]) => decision.tab === tab && place.has(index));
  return mine.sort(([, one], [, two]) => one.line - two.line).at(-1)?.[0];
}

async function undo() {
  const index = now >= 0 && decided.has(suspects[now].index) ? suspects[now].index : lastOfMine();
  if (index === undefined) return announce("Nothing to take back.");
  const suspect = suspects[place.get(index)];
  if (!(await send(suspect, "undo"))) return;
  show(place.get(index), "Taken back.");
}

function choose() {
  const suspect = suspects[now];
  if (suspect && !saving) pick(classes, (name) => decide(suspect, "other", name));
}

// A press that comes as a sample appears was meant for the one before.
function settled() {
  return !saving && performance.now() - since >= PAUSE;
}

const KEYS = {
  k: () => decide(suspects[now], "keep"),
  a: () => at("accept").disabled || decide(suspects[now], "accept"),
  o: choose,
  u: () => decide(suspects[now], "unsure"),
  z: undo,
};
const MOVES = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), "?": () => at("keys").showModal() };

// The letter on the key; where the keyboard writes other letters, the one in its place.
function letter(event) {
  return /^[a-z]$/i.test(event.key) ? event.key.toLowerCase() : event.key.codePointAt(0) > 127 ? event.code.replace("Key", "").toLowerCase() : event.key;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input[type=text], select")) return;
  if (event.repeat && event.target.matches("button") && ["Enter", " "].includes(event.key)) return event.preventDefault();
  const act = KEYS[letter(event)];
  if (act && !event.repeat && settled()) act();
  else if (!act && Object.hasOwn(MOVES, event.key) && !saving) MOVES[event.key]();
  else if (!act) return;
  event.preventDefault();
});

for (const [id, key] of Object.entries({ keep: "k", accept: "a", other: "o", unsure: "u", undo: "z" })) {
  at(id).onclick = () => settled() && KEYS[key]();
}
at("back").onclick = () => saving || move(-1);
at("forth").onclick = () => saving || move(1);
at("beyond").onclick = () => {
  goBeyond();
  show(nextOpen(0));
  at("main").focus();
};
at("help").onclick = () => at("keys").showModal();
at("close").onclick = () => at("keys").close();
at("cancel").onclick = () => at("picker").close();
at("filter").onchange = () => {
  show(nextOpen(0) >= 0 || at("open").checked ? nextOpen(0) : seek(0, 1, isListed));
  at("main").focus();
};
at("open").onchange = () => show(now >= 0 && isListed(suspects[now]) ? now : nextOpen(Math.max(now, 0)));
at("export").onclick = async () => {
  const answer = await ask("export", {});
  if (answer.status === 200) {
    complain("");
    tell(`Written: ${answer.message}.`);
  } else if (answer.status === 409) tell(sentence(answer.error));
  else complain(sentence(answer.error));
};

async function poll() {
  if (document.visibilityState === "visible" && !saving) {
    const known = version;
    const answer = await ask(`changes?since=${known}`);
    if (answer.status === 200 && answer.version !== known && known === version && !saving) {
      learn(answer);
      if (now >= 0) drawDecision(suspects[now]);
      drawStrip();
      drawProgress();
    }
    if (answer.status !== 200) complain(answer.error);
    else if ([lost(0), lost(403)].includes(at("problem").textContent)) complain("");
  }
  polling = setTimeout(poll, POLL);
}

function fillFilter() {
  const counts = new Map();
  for (const { given } of suspects.filter(isWanted)) counts.set(given, (counts.get(given) ?? 0) + 1);
  const chosen = at("filter").value;
  const options = classes.map((name, number) => [name, number]).filter(([name]) => counts.has(name));
  at("filter").replaceChildren(new Option("all labels", ""), ...options.map(([name, k]) => new Option(`${name} (${counts.get(name)})`, k)));
  at("filter").value = chosen;
}

async function open() {
  const answer = await ask("suspects");
  if (answer.status !== 200) return complain(answer.error);
  ({ suspects, classes } = answer);
  place = new Map(suspects.map(({ index }, where) => [index, where]));
  at("run").textContent = answer.run;
  document.title = `Review ${answer.run}`;
  learn(answer);
  fillFilter();
  show(nextOpen(0));
  at("main").focus();
  polling = setTimeout(poll, POLL);
}

open();
