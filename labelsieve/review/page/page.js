// Shows one sample at a time, saves the decision, then shows the next sample.
"use strict";

const AHEAD = 8; // samples in the strip; their images are preloaded
const POLL = 2000; // milliseconds between requests for decisions of other tabs
const PAUSE = 200; // milliseconds after a sample appears during which keys are ignored

const byId = (id) => document.getElementById(id);
const tab = (sessionStorage.tab ??= crypto.randomUUID());
const images = new Map();
let samples = []; // most suspicious first; the suspects come before the other samples, those of other kinds are last
let classes = [];
let positions = new Map(); // sample index -> position in `samples`
let decisions = new Map(); // sample index -> decision in effect
let version = 0; // number of lines of the log that are included in `decisions`
let current = 0; // position of the displayed sample; -1 if none
let pastSuspects = sessionStorage.beyond === "yes"; // whether this tab includes samples that are not suspects
let kind = "label"; // of issues, one of KINDS
let saving = false;
let shownAt = 0; // time at which the sample appeared
let polling = 0;

const count = (number) => number.toLocaleString("en");
const isUnsure = (sample) => decisions.get(sample.index)?.decision === "unsure";
const isUndecided = (sample) => !decisions.has(sample.index);
const inClass = (sample) => byId("filter").value === "" || sample.given === classes[byId("filter").value];
const isLabelIssue = (sample) => sample.listed.includes("label");
const isSuspect = (sample) => isLabelIssue(sample) && sample.is_issue;
const isPastSuspects = (sample) => isLabelIssue(sample) && !sample.is_issue;
const differsFromTwin = (sample) => sample.listed.includes("near_duplicate") && sample.twin.given !== sample.given;
const KINDS = {
  label: { name: "suspect labels", holds: isLabelIssue },
  near_duplicate: { name: "near-duplicates", one: "near-duplicate with another label", many: "near-duplicates with another label", holds: differsFromTwin },
  outlier: { name: "no class", one: "sample of no class", many: "samples of no class", holds: (sample) => sample.listed.includes("outlier") },
};
const isIncluded = (sample) => (kind === "label" ? isSuspect(sample) || (pastSuspects && isPastSuspects(sample)) : KINDS[kind].holds(sample));
const isListed = (sample) => isIncluded(sample) && inClass(sample) && (!byId("open").checked || isUndecided(sample));

function describe(decision, sample) {
  if (decision.decision === "keep") return `kept as ${sample.given}`;
  if (decision.decision === "unsure") return `unsure, label stays ${sample.given}`;
  return `changed to ${decision.label}`;
}

// Returns the position of the nearest matching sample in one direction, or -1.
function findPosition(from, step, matches) {
  for (let position = from; position >= 0 && position < samples.length; position += step) if (matches(samples[position])) return position;
  return -1;
}

function nextUndecided(from) {
  const matches = (sample) => isIncluded(sample) && inClass(sample) && isUndecided(sample);
  const ahead = findPosition(from, 1, matches);
  return ahead >= 0 ? ahead : findPosition(0, 1, matches);
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

function showNotice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

function image(sample) {
  if (!images.has(sample.index)) {
    const picture = new Image();
    picture.alt = "sample";
    picture.draggable = false;
    picture.src = address(`thumbs/${sample.index}`);
    images.set(sample.index, picture);
  }
  return images.get(sample.index);
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

function content(sample) {
  if (sample.image) return image(sample);
  if (sample.row) return table(sample.row);
  const text = document.createElement("p");
  text.textContent = sample.text ?? "No content available for this sample.";
  return text;
}

// Returns a sample or its twin with a caption, for showing both side by side.
function captioned(sample, words, label) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const name = document.createElement("bdi");
  name.textContent = label;
  caption.append(words, name);
  figure.append(content(sample), caption);
  return figure;
}

function drawView(sample) {
  const { twin } = sample;
  byId("view").className = `${sample.image ? "picture" : sample.row ? "row" : "text"}${twin ? " twins" : ""}`;
  if (!twin) return byId("view").replaceChildren(content(sample));
  byId("view").replaceChildren(captioned(sample, "this sample: ", sample.given), captioned(twin, "near-duplicate: ", twin.given));
}

function drawSample() {
  const sample = samples[current];
  byId("sample").hidden = !sample;
  byId("none").hidden = Boolean(sample);
  if (!sample) return drawEnd();
  drawView(sample);
  const group = kind !== "label" ? KINDS[kind].holds : isSuspect(sample) ? isSuspect : isPastSuspects;
  const number = samples.slice(0, current + 1).filter(group).length;
  const name = kind !== "label" ? KINDS[kind].many : isSuspect(sample) ? "suspects" : "further samples · label probably correct";
  byId("place").firstElementChild.textContent = `${count(number)} of ${count(samples.filter(group).length)} ${name}`;
  byId("given").textContent = sample.given;
  byId("suggested").textContent = sample.suggested === sample.given ? "none" : sample.suggested;
  byId("meter").value = sample.quality;
  byId("number").textContent = sample.quality < 0.01 ? "under 1%" : `${Math.round(100 * sample.quality)}%`;
  byId("why").textContent = sample.why;
  byId("name").firstElementChild.textContent = sample.id;
  byId("keep").querySelector("bdi").textContent = sample.given;
  byId("accept").querySelector("bdi").textContent = sample.suggested;
  byId("accept").disabled = sample.suggested === sample.given;
  drawDecision(sample);
}

// Shown when no sample is left: what is done, and what can be done next.
function drawEnd() {
  const suspects = samples.filter(isSuspect).length;
  const further = samples.filter((sample) => isPastSuspects(sample) && isUndecided(sample)).length;
  const all = kind !== "label" ? KINDS[kind].many : pastSuspects ? "samples" : `${count(suspects)} suspects`;
  const left = samples.some((sample) => isIncluded(sample) && isUndecided(sample));
  const unsure = samples.filter((sample) => isIncluded(sample) && isUnsure(sample)).length;
  const done = unsure ? `reviewed (${count(unsure)} unsure)` : "decided";
  const inThisClass = byId("filter").value === "" ? "" : " of this class";
  const hint = "“Export the reviewed labels” writes a label file for labelsieve train --labels.";
  const sentences = left
    ? [`No undecided sample${inThisClass} is left. Choose another class, or clear “only undecided”.`]
    : kind === "label" && !suspects && !pastSuspects
      ? ["There are no suspects: no label is marked as probably wrong.", otherKinds()]
      : [`All ${all} are ${done}.`, otherKinds(), hint];
  byId("none").firstElementChild.textContent = sentences.filter(Boolean).join(" ");
  byId("beyond").hidden = left || pastSuspects || !further || kind !== "label";
  byId("beyond").textContent = `${suspects ? "Continue with the next" : "Review the"} ${count(further)} most suspicious samples (labels probably correct)`;
  if (!byId("beyond").hidden) byId("beyond").focus();
}

// Returns a sentence on the other kinds of issues of which samples are undecided.
function otherKinds() {
  const others = Object.entries(KINDS).filter(([value]) => value !== kind && value !== "label");
  const open = others.map(([, { one, many, holds }]) => [samples.filter((sample) => holds(sample) && isUndecided(sample)).length, one, many]);
  const listed = open.filter(([number]) => number).map(([number, one, many]) => `${count(number)} ${number === 1 ? one : many}`);
  return listed.length ? `Still undecided: ${listed.join(", ")}; choose them at the top.` : "";
}

function goPastSuspects() {
  pastSuspects = true;
  sessionStorage.beyond = "yes";
  fillFilter();
}

function drawDecision(sample) {
  const decision = decisions.get(sample.index);
  byId("decided").textContent = decision
    ? ` · ${describe(decision, sample)}${decision.tab === tab ? "" : " (earlier or in another tab)"}`
    : "";
  for (const kind of ["keep", "accept", "other", "unsure"]) {
    byId(kind).setAttribute("aria-pressed", decision?.decision === kind);
  }
  byId("undo").disabled = !decision && lastFromThisTab() === undefined;
}

function drawStrip() {
  const coming = [];
  for (let position = current; coming.length < AHEAD; ) {
    position = findPosition(position + 1, 1, isListed);
    if (position < 0) break;
    coming.push(position);
  }
  byId("strip").replaceChildren(...coming.map(stripButton));
  const kept = [...coming, current, current - 1].map((position) => samples[position]).filter(Boolean);
  const near = new Set(kept.flatMap((sample) => [sample.index, sample.twin?.index]));
  for (const index of images.keys()) if (!near.has(index)) images.delete(index);
}

function textPreview(text) {
  const first = document.createElement("span");
  first.className = "words";
  first.textContent = text.slice(0, 80);
  return first;
}

function stripButton(position) {
  const sample = samples[position];
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-label", `sample ${position + 1}: labelled ${sample.given}`);
  if (sample.image) button.append(image(sample).cloneNode());
  else if (sample.text !== null) button.append(textPreview(sample.text));
  const label = document.createElement("bdi");
  label.textContent = sample.given;
  button.append(label);
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
  const left = samples.filter((s) => isIncluded(s) && inClass(s) && isUndecided(s)).length;
  const inThisClass = byId("filter").value === "" ? "" : ` · ${count(left)} left in this class`;
  const after = pastSuspects || more ? ` · ${count(more - unsureMore)} of the next ${count(further)}${unsureText(unsureMore)}` : "";
  const [seen, unsureSeen, total] = counts(samples.filter(KINDS[kind].holds));
  const shown = kind === "label"
    ? `${count(done - unsure)} of ${count(suspects)} suspects decided${unsureText(unsure)}${after}`
    : `${count(seen - unsureSeen)} of ${count(total)} ${KINDS[kind].many} decided${unsureText(unsureSeen)}`;
  byId("progress").textContent = `${shown} · ${count(changed)} changed${inThisClass}`;
  byId("bar").value = (kind !== "label" ? seen / total : pastSuspects ? more / further : done / suspects) || 0;
}

function show(position, before = "") {
  current = position;
  if (samples[current] && !KINDS[kind].holds(samples[current])) chooseKind(Object.keys(KINDS).find((name) => KINDS[name].holds(samples[current])));
  if (kind === "label" && !pastSuspects && samples[current] && isPastSuspects(samples[current])) goPastSuspects();
  shownAt = performance.now();
  drawSample();
  drawStrip();
  drawProgress();
  const sample = samples[current];
  announce(sample ? `${before} Sample ${current + 1}: labelled ${sample.given}, suggested ${sample.suggested}.` : `${before} ${byId("none").firstElementChild.textContent}`);
}

function move(step) {
  const position = findPosition(current < 0 ? (step > 0 ? 0 : samples.length - 1) : current + step, step, isListed);
  if (position >= 0) show(position);
  else announce(step > 0 ? "This is the last sample." : "This is the first sample.");
}

// Applies the changes in an answer of the server; the displayed sample stays.
function applyChanges(answer) {
  if (answer.version < version) return location.reload(); // the file was replaced
  for (const [index, decision] of Object.entries(answer.changed)) {
    if (decision) decisions.set(Number(index), decision);
    else decisions.delete(Number(index));
  }
  version = answer.version;
}

async function send(sample, decision, label) {
  if (saving) return false;
  saving = true;
  const over = decisions.get(sample.index)?.line ?? null;
  const answer = await request("decide", { index: sample.index, decision, label, over, since: version, tab });
  saving = false;
  if (answer.version !== undefined) applyChanges(answer);
  if (answer.status === 200) {
    showError("");
    showNotice("");
    return true;
  }
  showError(`Not saved. ${sentence(answer.error)}`);
  drawSample();
  drawStrip();
  drawProgress();
  return false;
}

async function decide(sample, decision, label) {
  if (!sample || !(await send(sample, decision, label))) return;
  show(nextUndecided(positions.get(sample.index) + 1), `${describe(decisions.get(sample.index), sample)}.`);
}

function lastFromThisTab() {
  const mine = [...decisions].filter(([index, decision]) => decision.tab === tab && positions.has(index));
  return mine.sort(([, one], [, two]) => one.line - two.line).at(-1)?.[0];
}

async function undo() {
  const index = current >= 0 && decisions.has(samples[current].index) ? samples[current].index : lastFromThisTab();
  if (index === undefined) return announce("Nothing to undo.");
  const sample = samples[positions.get(index)];
  if (!(await send(sample, "undo"))) return;
  show(positions.get(index), "Undone.");
}

function chooseClass() {
  const sample = samples[current];
  if (sample && !saving) pickClass(classes, (name) => decide(sample, "other", name));
}

// A key pressed just as a sample appears was meant for the previous sample.
function acceptsKeys() {
  return !saving && performance.now() - shownAt >= PAUSE;
}

const KEYS = {
  k: () => decide(samples[current], "keep"),
  a: () => byId("accept").disabled || decide(samples[current], "accept"),
  o: chooseClass,
  u: () => decide(samples[current], "unsure"),
  z: undo,
};
const MOVES = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), "?": () => byId("keys").showModal() };

// Returns the letter on the key; on keyboards with other scripts, the Latin letter in the same place.
function letter(event) {
  return /^[a-z]$/i.test(event.key) ? event.key.toLowerCase() : event.key.codePointAt(0) > 127 ? event.code.replace("Key", "").toLowerCase() : event.key;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input[type=text], select")) return;
  if (event.repeat && event.target.matches("button") && ["Enter", " "].includes(event.key)) return event.preventDefault();
  const act = KEYS[letter(event)];
  if (act && !event.repeat && acceptsKeys()) act();
  else if (!act && Object.hasOwn(MOVES, event.key) && !saving) MOVES[event.key]();
  else if (!act) return;
  event.preventDefault();
});

for (const [id, key] of Object.entries({ keep: "k", accept: "a", other: "o", unsure: "u", undo: "z" })) {
  byId(id).onclick = () => acceptsKeys() && KEYS[key]();
}
byId("back").onclick = () => saving || move(-1);
byId("forth").onclick = () => saving || move(1);
byId("beyond").onclick = () => {
  goPastSuspects();
  show(nextUndecided(0));
  byId("main").focus({ preventScroll: true });
};
byId("help").onclick = () => byId("keys").showModal();
byId("close").onclick = () => byId("keys").close();
byId("cancel").onclick = () => byId("picker").close();
function showFirst() {
  show(nextUndecided(0) >= 0 || byId("open").checked ? nextUndecided(0) : findPosition(0, 1, isListed));
  byId("main").focus({ preventScroll: true });
}

byId("filter").onchange = showFirst;
byId("kind").onchange = () => {
  chooseKind(byId("kind").value);
  byId("filter").value = "";
  showFirst();
};
byId("open").onchange = () => show(current >= 0 && isListed(samples[current]) ? current : nextUndecided(Math.max(current, 0)));
byId("export").onclick = async () => {
  const answer = await request("export", {});
  if (answer.status === 200) {
    showError("");
    showNotice(`Exported to ${answer.message}.`);
  } else if (answer.status === 409) showNotice(sentence(answer.error));
  else showError(sentence(answer.error));
};

async function poll() {
  if (document.visibilityState === "visible" && !saving) {
    const known = version;
    const answer = await request(`changes?since=${known}`);
    if (answer.status === 200 && answer.version !== known && known === version && !saving) {
      applyChanges(answer);
      if (current >= 0) drawDecision(samples[current]);
      drawStrip();
      drawProgress();
    }
    if (answer.status !== 200) showError(answer.error);
    else if ([connectionError(0), connectionError(403)].includes(byId("problem").textContent)) showError("");
  }
  polling = setTimeout(poll, POLL);
}

function fillFilter() {
  const counts = new Map();
  for (const { given } of samples.filter(isIncluded)) counts.set(given, (counts.get(given) ?? 0) + 1);
  const chosen = byId("filter").value;
  const options = classes.map((name, number) => [name, number]).filter(([name]) => counts.has(name));
  byId("filter").replaceChildren(new Option("all labels", ""), ...options.map(([name, k]) => new Option(`${name} (${counts.get(name)})`, k)));
  byId("filter").value = chosen;
}

function fillKinds() {
  const counts = Object.entries(KINDS).map(([value, { name, holds }]) => [value, name, samples.filter(value === "label" ? isSuspect : holds).length]);
  const listed = counts.filter(([value, , number]) => value === "label" || number);
  byId("kind").replaceChildren(...listed.map(([value, name, number]) => new Option(`${name} (${count(number)})`, value)));
  byId("kind").hidden = listed.length === 1;
}

function chooseKind(name) {
  kind = name;
  byId("kind").value = name;
  fillFilter();
}

async function open() {
  const answer = await request("samples");
  if (answer.status !== 200) return showError(answer.error);
  ({ samples, classes } = answer);
  samples = samples.filter((sample) => Object.values(KINDS).some(({ holds }) => holds(sample)));
  positions = new Map(samples.map(({ index }, position) => [index, position]));
  byId("run").textContent = answer.run;
  document.title = `Review ${answer.run}`;
  applyChanges(answer);
  fillKinds();
  fillFilter();
  show(nextUndecided(0));
  byId("main").focus({ preventScroll: true });
  polling = setTimeout(poll, POLL);
}

open();
