// The review: shows one sample at a time or a grid of them, saves the decisions, then shows what comes next.
"use strict";

const STRIP = 8; // samples in the strip
const AHEAD = 3; // samples whose pictures and details are loaded in advance
const WAIT = 250; // milliseconds between requests until the data is open
const POLL = 2000; // milliseconds between requests for decisions of other tabs
const PAUSE = 100; // milliseconds after a sample appears during which keys are ignored: nobody responds to it sooner
const YEAR = 31536000; // seconds

const byId = (id) => document.getElementById(id);
const tab = (sessionStorage.tab ??= crypto.randomUUID());
let samples = []; // most suspicious first; the suspects come before the other samples, those of other kinds are last
let classes = [];
let positions = new Map(); // sample index -> position in `samples`
let decisions = new Map(); // sample index -> decision in effect
let split = new Set(); // indices of samples on which reviewers disagree
let version = 0; // number of lines of the log that are included in `decisions`
let current = 0; // position of the displayed sample; -1 if none
let view = "one"; // or "grid"
let reviewer = ""; // name of the person at this page
let pastSuspects = sessionStorage.beyond === "yes"; // whether this tab includes samples that are not suspects
let kind = "label"; // of issues, one of KINDS
let ready = false; // whether the server has opened the data; until then there are thumbnails only
let saving = false;
let ahead = 0; // number of the last loading in advance; it stops earlier ones
let shownAt = 0; // time at which the sample appeared
let polling = 0;

// ---- samples and filters ----

const count = (number) => number.toLocaleString("en");
const isUnsure = (sample) => decisions.get(sample.index)?.decision === "unsure";
const isUndecided = (sample) => !decisions.has(sample.index);
const ownDecision = (sample) => decisions.get(sample.index)?.by.find(([name]) => name === reviewer);
const isLabelIssue = (sample) => sample.listed.includes("label");
const isSuspect = (sample) => isLabelIssue(sample) && sample.is_issue;
const isPastSuspects = (sample) => isLabelIssue(sample) && !sample.is_issue;
const differsFromTwin = (sample) => sample.listed.includes("near_duplicate") && sample.twin.given !== sample.given;
const KINDS = {
  label: { name: "Suspect labels", holds: isLabelIssue },
  near_duplicate: { name: "Near-duplicates", one: "near-duplicate with another label", many: "near-duplicates with another label", holds: differsFromTwin },
  outlier: { name: "No class", one: "sample of no class", many: "samples of no class", holds: (sample) => sample.listed.includes("outlier") },
};
const OPEN = { "": isUndecided, open: isUndecided, mine: (sample) => !ownDecision(sample), split: (sample) => split.has(sample.index) };

const chosenClass = (id) => (byId(id).value === "" ? undefined : classes[byId(id).value]);
const isIncluded = (sample) => (kind === "label" ? isSuspect(sample) || (pastSuspects && isPastSuspects(sample)) : KINDS[kind].holds(sample));
const isOpen = (sample) => OPEN[byId("shown").value](sample);
const isFound = (sample) => plain(sample.id).includes(plain(byId("name-search").value.trim()));

function isFiltered(sample) {
  const [given, suggested] = [chosenClass("filter"), chosenClass("suggestion")];
  return (given === undefined || sample.given === given) && (suggested === undefined || sample.suggested === suggested) && isFound(sample);
}

const isListed = (sample) => isIncluded(sample) && isFiltered(sample) && (byId("shown").value === "" || isOpen(sample));

// Returns the position of the nearest matching sample in one direction, or -1.
function findPosition(from, step, matches) {
  for (let position = from; position >= 0 && position < samples.length; position += step) if (matches(samples[position])) return position;
  return -1;
}

const isLeftHere = (sample) => isIncluded(sample) && isFiltered(sample) && isOpen(sample);

function nextUndecided(from) {
  const ahead = findPosition(from, 1, isLeftHere);
  return ahead >= 0 ? ahead : findPosition(0, 1, isLeftHere);
}

function fillClasses(id, all, key, among) {
  const counts = new Map();
  for (const sample of samples.filter(among)) counts.set(sample[key], (counts.get(sample[key]) ?? 0) + 1);
  const chosen = byId(id).value;
  const options = classes.map((name, number) => [name, number]).filter(([name]) => counts.has(name));
  byId(id).replaceChildren(new Option(all, ""), ...options.map(([name, k]) => new Option(`${name} (${counts.get(name)})`, k)));
  byId(id).value = options.some(([, k]) => String(k) === chosen) ? chosen : "";
}

function fillFilter() {
  fillClasses("filter", "All labels", "given", isIncluded);
  fillSuggestions();
}

function fillSuggestions() {
  const given = chosenClass("filter");
  fillClasses("suggestion", "All labels", "suggested", (sample) => isIncluded(sample) && (given === undefined || sample.given === given));
}

function fillKinds() {
  const counts = Object.entries(KINDS).map(([value, { name, holds }]) => [value, name, samples.filter(value === "label" ? isSuspect : holds).length]);
  const listed = counts.filter(([value, , number]) => value === "label" || number);
  byId("kind").replaceChildren(...listed.map(([value, name, number]) => new Option(`${name} (${count(number)})`, value)));
  byId("kind").parentNode.hidden = listed.length === 1;
}

function chooseKind(name) {
  kind = name;
  byId("kind").value = name;
  fillFilter();
}

function goPastSuspects() {
  pastSuspects = true;
  sessionStorage.beyond = "yes";
  fillFilter();
}

// ---- messages ----

function describe(decision, sample) {
  if (decision.decision === "keep") return `kept as ${sample.given}`;
  if (decision.decision === "unsure") return `unsure, label stays ${sample.given}`;
  return `changed to ${decision.label}`;
}

function announce(text) {
  byId("live").textContent = text;
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}

function showError(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
  if (text) byId("notice").hidden = true;
}

function showNotice(text, ...more) {
  byId("notice").replaceChildren(text, ...more);
  byId("notice").hidden = !text;
}

// ---- one sample ----

function thumb(sample) {
  return element("img", { alt: "", draggable: false, src: address(`thumbs/${sample.index}`) });
}

function plainTable(row) {
  const cells = (value) => named(typeof value === "string" ? value : JSON.stringify(value));
  const lines = Object.entries(row).map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, named(name)), element("td", {}, cells(value))));
  return element("table", {}, element("tbody", {}, ...lines));
}

function content(sample, alt) {
  if (sample.image) return stage(sample, alt);
  if (sample.row) return plainTable(sample.row);
  return element("p", { class: "content" }, sample.text ?? "No content available for this sample.");
}

// Returns a sample or its twin with a caption, for showing both side by side.
function captioned(sample, words, label) {
  return element("figure", {}, content(sample, words), element("figcaption", {}, `${words}: `, named(label)));
}

function drawView(sample) {
  const { twin } = sample;
  byId("view").className = `${sample.image ? "picture" : sample.row ? "row" : "text"}${twin ? " twins" : ""}`;
  if (sample.image) byId("view").removeAttribute("tabindex");
  else byId("view").tabIndex = 0; // it scrolls
  byId("zooming").hidden = !sample.image;
  byId("pixels").textContent = "";
  byId("gone").hidden = true;
  resetZoom();
  byId("view").replaceChildren(...(twin ? [captioned(sample, "This sample", sample.given), captioned(twin, "Near-duplicate", twin.given)] : [content(sample, "The sample")]));
  if (loupeOn) toggleLoupe();
  byId("compare").replaceChildren(element("p", {}, "Loading examples to compare with…"));
  if (!ready) return;
  loadDetails(sample.index).then((found) => found.status === 200 && samples[current] === sample && view === "one" && drawDetails(sample, found));
}

function drawSample() {
  const sample = samples[current];
  byId("sample").hidden = !sample || view !== "one";
  byId("none").hidden = Boolean(sample) || view !== "one";
  if (!sample) return drawEnd();
  drawView(sample);
  drawPlace(sample);
  byId("given").textContent = sample.given;
  byId("suggested").textContent = sample.suggested === sample.given ? "none" : sample.suggested;
  byId("suggested").classList.toggle("missing", sample.suggested === sample.given);
  byId("meter").value = sample.quality;
  byId("number").textContent = sample.shown_quality;
  byId("why").textContent = sample.why;
  byId("name").firstElementChild.textContent = sample.id;
  byId("keep").querySelector("bdi").textContent = sample.given;
  byId("accept").disabled = sample.suggested === sample.given;
  byId("accept").lastElementChild.replaceChildren(...(byId("accept").disabled ? ["No suggestion"] : ["Change to ", named(sample.suggested)]));
  drawDecision(sample);
}

function drawPlace(sample) {
  const group = kind !== "label" ? KINDS[kind].holds : isSuspect(sample) ? isSuspect : isPastSuspects;
  const number = samples.slice(0, current + 1).filter(group).length;
  const name = kind !== "label" ? KINDS[kind].many : isSuspect(sample) ? "suspects" : "further samples · label probably correct";
  byId("place").firstElementChild.textContent = `${count(number)} of ${count(samples.filter(group).length)} ${name}`;
}

const isLeft = () => samples.some((sample) => isIncluded(sample) && isUndecided(sample));

// Returns how the filters leave no sample to show, or "" if they are not the reason.
function emptyFilters() {
  const text = byId("name-search").value.trim();
  const listed = kind === "label" && !pastSuspects ? "suspect" : "listed sample";
  if (!samples.some((sample) => isIncluded(sample) && isFound(sample)) && text) return `No ${listed} has “${text}” in its name. The file may not be a ${listed}.`;
  if (view === "grid" && pairs.length) return "No sample matches these filters. Go to the next pair, or clear the filters.";
  return isLeft() || byId("shown").value === "split" ? "No sample that matches the filters is left. Change or clear the filters." : "";
}

// Returns what is done, and what can be done next, when all samples are decided.
function endText() {
  const suspects = samples.filter(isSuspect).length;
  const sentences = kind === "label" && !suspects && !pastSuspects
    ? ["There are no suspects: no label is marked as probably wrong.", otherKinds()]
    : [allDone(suspects), otherKinds(), "“Export” writes a label file, and shows the command that trains on it."];
  return sentences.filter(Boolean).join(" ");
}

function drawEnd() {
  const suspects = samples.filter(isSuspect).length;
  const further = samples.filter((sample) => isPastSuspects(sample) && isUndecided(sample)).length;
  const reason = emptyFilters();
  byId("none").firstElementChild.textContent = reason || endText();
  byId("clear").hidden = !reason;
  byId("beyond").hidden = isLeft() || pastSuspects || !further || kind !== "label";
  byId("beyond").textContent = `${suspects ? "Continue with the next" : "Review the"} ${count(further)} most suspicious samples (labels probably correct)`;
  if (!document.activeElement.matches("header *, select")) focusSamples();
}

// Moves the keyboard focus to the samples or, if none is left, to the button that continues.
function focusSamples() {
  const offered = [byId("clear"), byId("beyond")].find((button) => button.offsetParent);
  (offered ?? byId(view === "grid" && cells.length ? "cells" : "main")).focus({ preventScroll: true });
}

function allDone(suspects) {
  const all = kind !== "label" ? KINDS[kind].many : pastSuspects ? "samples" : `${count(suspects)} suspects`;
  const unsure = samples.filter((sample) => isIncluded(sample) && isUnsure(sample)).length;
  return `All ${all} are ${unsure ? `reviewed (${count(unsure)} unsure)` : "decided"}.`;
}

// Returns a sentence on the other kinds of issues of which samples are undecided.
function otherKinds() {
  const others = Object.entries(KINDS).filter(([value]) => value !== kind && value !== "label");
  const open = others.map(([, { one, many, holds }]) => [samples.filter((sample) => holds(sample) && isUndecided(sample)).length, one, many]);
  const listed = open.filter(([number]) => number).map(([number, one, many]) => `${count(number)} ${number === 1 ? one : many}`);
  return listed.length ? `Still undecided: ${listed.join(", ")}; choose them under “Kind”.` : "";
}

// Returns the decision to display: that in effect, or one's own when reviewing independently of others.
function shownDecision(sample) {
  if (byId("shown").value !== "mine") return decisions.get(sample.index);
  const own = ownDecision(sample);
  return own && { decision: own[1], label: own[2], tab, reviewer };
}

function drawDecision(sample) {
  const decision = shownDecision(sample);
  const who = decision?.tab === tab ? "" : decision?.reviewer && decision.reviewer !== reviewer ? ` by ${decision.reviewer}` : " earlier or in another tab";
  byId("decided").textContent = decision ? ` · ${describe(decision, sample)}${who}` : "";
  for (const name of ["keep", "accept", "other", "unsure"]) byId(name).setAttribute("aria-pressed", decision?.decision === name);
  byId("undo").disabled = decision ? !ownDecision(sample) : !lastAction().length;
  const by = split.has(sample.index) && byId("shown").value !== "mine" ? decisions.get(sample.index).by : [];
  const opinions = by.map(([name, what, label]) => `${name || "Unnamed"}: ${describe({ decision: what, label }, sample)}`);
  byId("opinions").textContent = `Reviewers disagree. ${opinions.join(" · ")}`;
  byId("opinions").hidden = !by.length;
}

function drawStrip() {
  const coming = [];
  for (let position = current; coming.length < STRIP; ) {
    position = findPosition(position + 1, 1, isListed);
    if (position < 0) break;
    coming.push(position);
  }
  byId("strip").replaceChildren(...coming.map(stripButton));
  return coming;
}

// Loads what the next decisions will show, one sample after the other, so that a decision never waits for it.
async function loadAhead(coming) {
  const turn = (ahead += 1);
  if (!ready) return;
  if (samples[current]) await loadDetails(samples[current].index);
  for (const sample of coming.map((position) => samples[position]).filter(isOpen).slice(0, AHEAD)) {
    if (turn !== ahead) return;
    await loadDetails(sample.index);
    for (const one of [sample, sample.twin]) if (one?.image) await picture(one.index).ready;
  }
}

function stripButton(position) {
  const sample = samples[position];
  const name = `Sample ${position + 1}: labelled ${sample.given}`;
  const button = element("button", { type: "button", "aria-label": name, title: name });
  if (sample.image) button.append(thumb(sample));
  else button.append(preview(sample));
  button.append(named(sample.given));
  button.classList.toggle("done", decisions.has(sample.index));
  button.onclick = () => show(position);
  return button;
}

function drawProgress() {
  const counts = (group) => [group.filter((sample) => !isUndecided(sample)).length, group.filter(isUnsure).length, group.length];
  const unsureText = (number) => (number ? `, ${count(number)} unsure` : "");
  const [done, unsure, suspects] = counts(samples.filter(isSuspect));
  const [more, unsureMore, further] = counts(samples.filter(isPastSuspects));
  const changed = samples.filter((s) => (decisions.get(s.index)?.label ?? s.given) !== s.given).length;
  const left = samples.filter(isLeftHere).length;
  const filtered = [...FILTERS, "name-search"].some((id) => byId(id).value !== "");
  const after = pastSuspects || more ? ` · ${count(more - unsureMore)} of the next ${count(further)}${unsureText(unsureMore)}` : "";
  const [seen, unsureSeen, total] = counts(samples.filter(KINDS[kind].holds));
  const shown = kind === "label"
    ? `${count(done - unsure)} of ${count(suspects)} suspects decided${unsureText(unsure)}${after}`
    : `${count(seen - unsureSeen)} of ${count(total)} ${KINDS[kind].many} decided${unsureText(unsureSeen)}`;
  byId("progress").textContent = `${shown} · ${count(changed)} changed${filtered ? ` · ${count(left)} left in these filters` : ""}`;
  byId("bar").value = (kind !== "label" ? seen / total : pastSuspects ? more / further : done / suspects) || 0;
}

function drawAgreement(pairsOfPeople) {
  const texts = pairsOfPeople.map(({ one, other, both, equal, kappa }) => {
    const names = [one, other].map((name) => name || "unnamed").join(" and ");
    return `${names}: ${Math.round((100 * equal) / both)}% equal, Cohen’s κ ${kappa.toFixed(2)}, on ${count(both)} samples that both decided`;
  });
  byId("agreement").textContent = `Agreement. ${texts.join("; ")}.`;
  byId("agreement").hidden = !texts.length;
}

function show(position, before = "") {
  current = position;
  const sample = samples[current];
  if (sample && !KINDS[kind].holds(sample)) chooseKind(Object.keys(KINDS).find((name) => KINDS[name].holds(sample)));
  if (kind === "label" && !pastSuspects && sample && isPastSuspects(sample)) goPastSuspects();
  shownAt = performance.now();
  drawSample();
  loadAhead(drawStrip());
  drawProgress();
  announce(sample ? `${before} Sample ${current + 1}: labelled ${sample.given}, suggested ${sample.suggested}.` : `${before} ${byId("none").firstElementChild.textContent}`);
}

function move(step) {
  const position = findPosition(current < 0 ? (step > 0 ? 0 : samples.length - 1) : current + step, step, isListed);
  if (position >= 0) show(position);
  else announce(step > 0 ? "This is the last sample." : "This is the first sample.");
}

// ---- views ----

// Draws the current view again; the displayed sample stays.
function draw() {
  if (view === "one") return show(current);
  drawGrid();
  drawProgress();
}

const FILTERS = ["filter", "suggestion", "shown"];
let filtersBefore = null; // values of FILTERS that the user chose; the grid narrows them, also while one of its samples is shown

// Shows one sample or the grid; `position` is that of the sample to show, else the current or the next open one.
function setView(name, position = -1) {
  if (name === view) return;
  view = name;
  byId("one").setAttribute("aria-pressed", view === "one");
  byId("many").setAttribute("aria-pressed", view === "grid");
  byId("grid").hidden = view !== "grid";
  byId("sample").hidden = byId("none").hidden = true;
  if (view === "grid") return openGrid();
  if (position < 0) restoreFilters();
  const here = samples[current] && isLeftHere(samples[current]) ? current : nextUndecided(0);
  show(position >= 0 ? position : here);
  focusSamples();
}

// Opens the grid as it was when one of its samples was opened, or else narrowed to what is undecided and alike.
function openGrid() {
  if (filtersBefore) draw();
  else narrowFilters();
  focusSamples();
}

// Chooses the given and suggested label of the current sample, and what is undecided.
function narrowFilters() {
  const sample = samples[current];
  filtersBefore = FILTERS.map((id) => byId(id).value);
  if (byId("shown").value === "") byId("shown").value = "open";
  countPairs();
  const alike = sample && pairs.find(([given, suggested]) => given === sample.given && suggested === sample.suggested);
  choosePair(alike ?? pairs[0]);
}

function chooseFilter(id, value) {
  byId(id).value = value;
  if (filtersBefore) filtersBefore[FILTERS.indexOf(id)] = byId(id).value;
}

function clearFilters() {
  filtersBefore = null;
  for (const id of [...FILTERS, "name-search"]) byId(id).value = "";
  if (view === "grid") openGrid();
  else filterChanged();
}

function restoreFilters() {
  const [given, suggested, shown] = filtersBefore;
  byId("filter").value = given;
  fillSuggestions();
  byId("suggestion").value = suggested;
  byId("shown").value = shown;
  filtersBefore = null;
}

// ---- decisions ----

// Applies the changes in an answer of the server.
function applyChanges(answer) {
  if (answer.version < version) return location.reload(); // the file was replaced
  for (const [index, decision] of Object.entries(answer.changed)) {
    if (decision) decisions.set(Number(index), decision);
    else decisions.delete(Number(index));
  }
  version = answer.version;
  split = new Set(answer.split);
  drawAgreement(answer.agreement);
}

// Posts a decision; returns the answer, or null if nothing was saved.
async function post(path, body) {
  if (saving) return null;
  saving = true;
  const answer = await request(path, { ...body, since: version, tab, reviewer });
  saving = false;
  if (answer.version !== undefined) applyChanges(answer);
  if (answer.status === 200) {
    showError("");
    showNotice("");
    return answer;
  }
  showError(`Not saved. ${sentence(answer.error)}`);
  draw();
  return null;
}

const lineOf = (sample) => decisions.get(sample.index)?.line ?? null;
const send = (sample, decision, label) => post("decide", { index: sample.index, decision, label, over: lineOf(sample) });
const sendMany = (chosen, decision, label) =>
  post("decide-many", { items: chosen.map((sample) => [sample.index, lineOf(sample)]), decision, label, action: crypto.randomUUID() });

async function decide(sample, decision, label) {
  if (!sample || !(await send(sample, decision, label))) return;
  show(nextUndecided(positions.get(sample.index) + 1), `${describe(decisions.get(sample.index), sample)}.`);
}

// Returns the samples of the reviewer's last action in this tab that is still in effect.
function lastAction() {
  const mine = [...decisions].filter(([index, decision]) => decision.tab === tab && decision.reviewer === reviewer && positions.has(index));
  const [index, last] = mine.reduce((one, other) => (other[1].line > one[1].line ? other : one), [undefined, { line: -1 }]);
  const alike = last.action ? mine.filter(([, decision]) => decision.action === last.action).map(([each]) => each) : index === undefined ? [] : [index];
  return alike.map((each) => samples[positions.get(each)]);
}

async function undo() {
  const sample = samples[current];
  const decision = sample && shownDecision(sample);
  if (!decision) return undoLast();
  if (!ownDecision(sample)) return showNotice(`Only ${decision.reviewer || "the reviewer without a name"} can undo this decision. Decide again to change it.`);
  if (await send(sample, "undo")) show(current, "Undone.");
}

// Undoes the last action of this tab, all of its decisions at once.
async function undoLast() {
  const last = lastAction();
  if (!last.length) return announce("Nothing to undo.");
  const answer = last.length === 1 ? await send(last[0], "undo") : await sendMany(last, "undo");
  if (!answer) return;
  if (last.length > 1) showNotice(`Undone: ${count(last.length - answer.refused.length)} decisions.`);
  if (view === "one") show(positions.get(last[0].index), "Undone.");
  else choosePair(byId("pair").value === "" ? undefined : [last[0].given, last[0].suggested]);
}

function chooseOther() {
  const sample = samples[current];
  if (sample && !saving) pickClass(classes, (name) => decide(sample, "other", name));
}

// Shows the samples with one given label.
function jumpToClass() {
  const listed = [...byId("filter").options].slice(1).map((option) => classes[option.value]);
  pickClass(listed, (name) => {
    chooseFilter("filter", classes.indexOf(name));
    filterChanged();
  }, "Go to a class");
}

// ---- keys ----

// A key pressed just as a sample appears was meant for the previous sample.
function acceptsKeys() {
  return !saving && performance.now() - shownAt >= PAUSE;
}

const KEYS = {
  k: () => decide(samples[current], "keep"),
  a: () => byId("accept").disabled || decide(samples[current], "accept"),
  o: chooseOther,
  u: () => decide(samples[current], "unsure"),
  z: undo,
};
const MOVES = { ArrowLeft: () => move(-1), ArrowRight: () => move(1) };
const EVERYWHERE = {
  "?": () => byId("keys").showModal(),
  "/": () => ((byId("filters").open = true), byId("name-search").focus()),
  c: jumpToClass,
  g: () => setView(view === "one" ? "grid" : "one"),
};

// Returns the letter on the key; on keyboards with other scripts, the Latin letter in the same place.
function letter(event) {
  return /^[a-z]$/i.test(event.key) ? event.key.toLowerCase() : event.key.codePointAt(0) > 127 ? event.code.replace("Key", "").toLowerCase() : event.key;
}

// Returns what a key does that changes no decision, or undefined.
function moveOf(event, key) {
  const inGrid = view === "grid";
  if (!inGrid && event.shiftKey && PAN_KEYS[event.key]) return () => panByKey(...PAN_KEYS[event.key]);
  const onButton = event.target.matches("button, summary, a") && ["Enter", " "].includes(event.key);
  const known = inGrid ? GRID_MOVES : { ...MOVES, ...ZOOM_KEYS };
  return [EVERYWHERE, onButton ? {} : known].map((moves) => (Object.hasOwn(moves, key) ? moves[key] : undefined)).find(Boolean);
}

// Returns from the search to the samples; the text stays, and the filter with it.
function leaveField(event) {
  if (!["Escape", "Enter"].includes(event.key) || event.target.matches("select")) return;
  event.preventDefault();
  focusSamples();
}

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.target.matches("input[type=text], input[type=search], select")) return leaveField(event);
  if (view === "grid" && (event.ctrlKey || event.metaKey) && event.key === "a") return event.preventDefault(), selectAll();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.repeat && event.target.matches("button") && ["Enter", " "].includes(event.key)) return event.preventDefault();
  const key = letter(event);
  const act = (view === "grid" ? GRID_KEYS : KEYS)[key];
  const moving = moveOf(event, key);
  if (act && !event.repeat && (view === "grid" ? !saving : acceptsKeys())) act();
  else if (!act && moving && !saving) moving(event);
  else if (!act) return;
  event.preventDefault();
});

// ---- controls ----

function filterChanged() {
  fillSuggestions();
  if (view === "grid") {
    selected.clear();
    draw();
  } else showFirst();
  focusSamples();
}

// Shows the first sample that is left, or else the first one that is listed.
function showFirst() {
  const open = nextUndecided(0);
  show(open >= 0 ? open : findPosition(0, 1, isListed));
}

function startControls() {
  for (const [id, key] of Object.entries({ keep: "k", accept: "a", other: "o", unsure: "u", undo: "z" })) byId(id).onclick = () => acceptsKeys() && KEYS[key]();
  for (const [id, key] of Object.entries({ in: "+", out: "-", fit: "0", actual: "1", loupe: "l" })) byId(id).onclick = ZOOM_KEYS[key];
  byId("back").onclick = () => saving || move(-1);
  byId("forth").onclick = () => saving || move(1);
  byId("one").onclick = () => setView("one");
  byId("many").onclick = () => setView("grid");
  byId("help").onclick = () => byId("keys").showModal();
  byId("jump").onclick = jumpToClass;
  byId("reviewer").onclick = () => askName(true);
  byId("export").onclick = exportLabels;
  for (const [id, dialog] of Object.entries({ close: "keys", cancel: "picker", "peek-close": "peek", "who-cancel": "who" })) byId(id).onclick = () => byId(dialog).close();
  for (const id of FILTERS) byId(id).onchange = () => (chooseFilter(id, byId(id).value), filterChanged());
  byId("name-search").oninput = () => (view === "grid" ? draw() : showFirst());
  byId("kind").onchange = () => {
    chooseKind(byId("kind").value);
    for (const id of ["filter", "suggestion"]) chooseFilter(id, "");
    filterChanged();
  };
  byId("beyond").onclick = () => {
    goPastSuspects();
    if (view === "grid") countPairs(), choosePair(pairs[0]);
    else show(nextUndecided(0));
    focusSamples();
  };
  byId("clear").onclick = clearFilters;
  byId("who-form").onsubmit = () => setReviewer(byId("who-name").value.trim());
  byId("runs").onchange = () => (location.search = `?token=${token}&run=${byId("runs").value}`);
  document.addEventListener("pointerover", ({ target }) => target.matches("select") && (target.title = target.selectedOptions[0]?.text ?? "")); // it may be cut
  byId("filters").open = !matchMedia("(max-width: 60rem)").matches;
  startGrid();
}

async function exportLabels() {
  const answer = await request("export", {});
  if (answer.status === 200) {
    showError("");
    showNotice(`Exported to ${answer.message}.`, ...(answer.command ? [" Train on these labels: ", element("code", {}, answer.command)] : []));
  } else if (answer.status === 409) showNotice(sentence(answer.error));
  else showError(sentence(answer.error));
}

// ---- reviewer ----

// The name is kept in a cookie, because the port, and with it the page's own storage, changes with every session.
const savedName = () => document.cookie.split("; ").find((each) => each.startsWith("reviewer="))?.slice("reviewer=".length);

function askName(again) {
  byId("who-save").firstChild.data = again ? "Save " : "Start ";
  byId("who-cancel").hidden = !again;
  byId("who-name").value = reviewer;
  byId("who").showModal();
  byId("who-name").select();
}

function setReviewer(name, keep = true) {
  if (name !== reviewer) showNotice(""); // it may offer to undo what another person decided
  reviewer = name;
  if (keep) document.cookie = `reviewer=${encodeURIComponent(name)}; max-age=${YEAR}; path=/; SameSite=Strict`;
  byId("reviewer").textContent = name || "No name";
  byId("reviewer").setAttribute("aria-label", `Reviewer: ${name || "no name"}`);
  if (samples.length && keep) draw();
}

// ---- start ----

async function poll() {
  if (document.visibilityState === "visible" && !saving) {
    const known = version;
    const answer = await request(`changes?since=${known}`);
    if (answer.status === 200 && answer.version !== known && known === version && !saving) {
      applyChanges(answer);
      refresh();
    }
    if (answer.status !== 200) showError(answer.error);
    else if ([connectionError(0), connectionError(403)].includes(byId("problem").textContent)) showError("");
  }
  polling = setTimeout(poll, POLL);
}

// Draws what decisions of others change; the sample stays, and so do the cells with their selection.
function refresh() {
  if (view === "one" && current >= 0) {
    drawDecision(samples[current]);
    drawStrip();
  }
  if (view === "grid") drawGrid();
  drawProgress();
}

// Waits until the server has opened the data, then shows it instead of the thumbnails.
async function awaitData() {
  while (!ready) {
    await new Promise((done) => setTimeout(done, WAIT));
    ready = (await request("ready")).ready === true;
  }
  if (!saving) view === "one" ? (drawSample(), loadAhead(drawStrip())) : drawGrid();
}

async function open() {
  startControls();
  const answer = await request("samples");
  if (answer.status !== 200) return showError(answer.error);
  ({ samples, classes } = answer);
  samples = samples.filter((sample) => Object.values(KINDS).some(({ holds }) => holds(sample)));
  for (const [place, sample] of samples.filter(isLabelIssue).entries()) sample.rank = place + 1;
  positions = new Map(samples.map(({ index }, position) => [index, position]));
  byId("run").textContent = answer.runs.length > 1 ? "" : answer.run;
  byId("runs").replaceChildren(...answer.runs.map((name, number) => new Option(name, number)));
  byId("runs").value = runNumber;
  byId("runs").hidden = answer.runs.length === 1;
  document.title = `Review ${answer.run}`;
  setReviewer(answer.reviewer ?? decodeURIComponent(savedName() ?? ""), false);
  applyChanges(answer);
  ready = answer.ready;
  fillKinds();
  fillFilter();
  show(nextUndecided(0));
  focusSamples();
  if (answer.reviewer === null && savedName() === undefined) askName(false);
  polling = setTimeout(poll, POLL);
  if (!ready) awaitData();
}

open();
