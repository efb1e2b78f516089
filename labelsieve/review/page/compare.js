// What a sample is compared with: sure examples of both classes, nearest neighbours, telling words, unusual columns.
"use strict";

const STRONG = 0.5; // share of the largest contribution, from which a word is marked strongly
const KEPT_DETAILS = 60;
const details = new Map(); // sample index -> promise of its details

// Returns the details of a sample; they are requested once, and again after a failure.
function loadDetails(index) {
  if (!details.has(index)) {
    const answer = request(`details/${index}`);
    details.set(index, answer);
    answer.then(({ status }) => status === 200 || details.delete(index));
    for (const oldest of [...details.keys()].slice(0, -KEPT_DETAILS)) details.delete(oldest);
  }
  return details.get(index);
}

function drawDetails(sample, found) {
  byId("gone").textContent = found.problem ?? "";
  byId("gone").hidden = !found.problem;
  if (found.size) noteOriginal(sample, found.size);
  if (found.text != null && !sample.twin) byId("view").replaceChildren(markedText(sample, found));
  if (found.columns && !sample.twin) byId("view").replaceChildren(comparedRow(sample, found.columns));
  drawCompare(sample, found);
}

function noteOriginal(sample, size) {
  const image = picture(sample.index);
  Object.assign(image, { original: size, sampleIndex: sample.index });
  byId("pixels").textContent = `${count(size[0])} × ${count(size[1])} pixels`;
}

function drawCompare(sample, found) {
  const groups = Object.entries(found.examples ?? {}).map(([name, list]) => group(["Sure examples of ", named(name)], list));
  const votes = new Map();
  for (const { given } of found.neighbours ?? []) votes.set(given, (votes.get(given) ?? 0) + 1);
  const most = [...votes].sort((one, two) => two[1] - one[1]).slice(0, 2);
  const words = most.flatMap(([name, number], k) => [k ? ", " : ": ", `${number} of ${found.neighbours.length} labelled `, named(name)]);
  groups.push(group(["Most similar samples", ...words], found.neighbours ?? [], true));
  byId("compare").replaceChildren(...groups.filter(Boolean));
}

function group(title, list, labelled = false) {
  if (!list.length) return null;
  return element("section", { class: "group" }, element("h2", {}, ...title), element("ul", {}, ...list.map((one) => element("li", {}, relatedButton(one, labelled)))));
}

// Returns a button that shows a sample to compare with in full size.
function relatedButton(one, labelled) {
  const name = `${one.id}, labelled ${one.given}`;
  const button = element("button", { type: "button", "aria-label": `Enlarge ${name}`, title: name });
  if (one.image) button.append(element("img", { alt: "", loading: "lazy", src: address(`pictures/${one.index}?size=small`) }));
  else button.append(element("span", { class: "words" }, one.text ?? one.id));
  if (labelled) button.append(named(one.given));
  button.onclick = () => peek(one);
  return button;
}

function peek(one) {
  const content = one.image ? element("img", { alt: one.id, src: address(`pictures/${one.index}?size=full`) }) : element("p", {}, one.text ?? "");
  byId("peeked").replaceChildren(content);
  byId("peek-title").replaceChildren("Labelled ", named(one.given));
  byId("peek-name").textContent = one.id;
  byId("peek").showModal();
}

// Returns the whole text; words that speak for the given or for the suggested label are marked.
function markedText(sample, { text, words }) {
  const whole = element("div", { class: "whole" });
  const shown = element("p", { class: "content" });
  const largest = Math.max(...words.map(([, , score]) => Math.abs(score)), 0);
  const characters = [...text]; // places count characters as Python does
  let at = 0;
  for (const [start, end, score] of words) {
    shown.append(characters.slice(at, start).join(""), mark(characters.slice(start, end).join(""), score, largest));
    at = end;
  }
  shown.append(characters.slice(at).join(""));
  whole.append(shown);
  if (words.length) whole.append(legend(sample));
  return whole;
}

function mark(word, score, largest) {
  const side = score > 0 ? "given" : "suggested";
  return element("mark", { class: `${side}${Math.abs(score) >= STRONG * largest ? " strong" : ""}` }, word);
}

function legend(sample) {
  const side = (kind, name) => [element("mark", { class: `${kind} strong` }, "Words like this"), " speak for ", named(name), ". "];
  return element("p", { class: "legend" }, ...side("given", sample.given), ...side("suggested", sample.suggested));
}

// Returns the row of a sample with the medians of both classes; columns that are unusual for the given one come first.
function comparedRow(sample, columns) {
  const same = sample.given === sample.suggested;
  const titles = ["Column", "Value", ["Median of ", named(sample.given)], ...(same ? [] : [["Median of ", named(sample.suggested)]])];
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, ...[title].flat())));
  const lines = columns.map((column) => {
    const numbers = [column.value, column.given, ...(same ? [] : [column.suggested])].map((value) => element("td", {}, brief(value)));
    const name = element("th", { scope: "row" }, named(column.name));
    if (column.unusual) {
      const apart = `${Math.abs(column.score).toFixed(1)} deviations ${column.score > 0 ? "above" : "below"}`;
      name.append(element("span", { class: "unusual" }, `Unusual: ${apart}`));
    }
    return element("tr", column.unusual ? { class: "odd" } : {}, name, ...numbers);
  });
  return element("table", { class: "compared" }, element("thead", {}, head), element("tbody", {}, ...lines));
}

const brief = (value) => (Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4))));
