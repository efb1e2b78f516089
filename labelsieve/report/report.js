"use strict";
// Filters the suspects, and by label also the samples after them. Without JavaScript the page shows all samples and no filters.
const form = document.getElementById("filters");
if (form) {
  const cards = [...document.querySelectorAll("#gallery > li")];
  const further = [...document.querySelectorAll("#beyond li")];
  const percent = (card) => Math.max(1, Math.round(100 * Number(card.dataset.quality))); // as on the card
  const levels = [...new Set(cards.map(percent))].sort((a, b) => a - b);
  const { given, suggested, quality, shown } = form.elements;
  const status = document.getElementById("count");
  quality.max = levels.length - 1;
  quality.defaultValue = levels.length - 1;

  const applyFilters = () => {
    const limit = levels[quality.value];
    let count = 0;
    const hasLabels = ({ dataset }) =>
      (!given.value || given.value === dataset.given) && (!suggested.value || suggested.value === dataset.suggested);
    for (const card of cards) {
      card.hidden = !(hasLabels(card) && percent(card) <= limit);
      count += card.hidden ? 0 : 1;
    }
    for (const card of further) card.hidden = !hasLabels(card);
    shown.value = `${limit}%`;
    quality.setAttribute("aria-valuetext", shown.value);
    status.textContent = `${count} of ${status.dataset.total} suspects shown`;
  };
  quality.closest("label").hidden = levels.length === 1;
  form.addEventListener("input", applyFilters);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(applyFilters));
  form.hidden = false;
  applyFilters();
}

// The map: names and pictures under the pointer, a click leads to the card of a suspect, one class can be highlighted.
const plane = document.querySelector(".points");
if (plane) {
  const peek = document.getElementById("peek");
  const only = document.getElementById("only");
  const cardOf = (point) => document.getElementById(`sample-${point.dataset.index}`);
  for (const title of plane.querySelectorAll("circle > title")) {
    title.parentNode.dataset.name = title.textContent;
    title.remove(); // it would be shown twice
  }

  const show = (point) => {
    const picture = cardOf(point)?.querySelector("img");
    const name = document.createElement("p");
    name.textContent = point.dataset.name;
    peek.replaceChildren(...(picture ? [Object.assign(new Image(), { src: picture.src, alt: "" })] : []), name);
    peek.hidden = false;
    const { left, top, width } = point.getBoundingClientRect();
    const right = left + width + 8 + peek.offsetWidth < document.documentElement.clientWidth;
    peek.style.left = `${Math.max(4, right ? left + width + 8 : left - peek.offsetWidth - 8)}px`;
    peek.style.top = `${Math.max(4, Math.min(top, window.innerHeight - peek.offsetHeight - 4))}px`;
  };
  plane.addEventListener("pointerover", ({ target }) => (target.dataset.index ? show(target) : (peek.hidden = true)));
  plane.addEventListener("pointerleave", () => (peek.hidden = true));
  document.addEventListener("scroll", () => (peek.hidden = true), { passive: true });
  plane.addEventListener("click", ({ target }) => {
    const card = target.dataset.index && cardOf(target);
    if (card) card.scrollIntoView({ block: "center" });
  });

  only.addEventListener("input", ({ target }) => {
    for (const group of plane.querySelectorAll("g")) {
      group.classList.toggle("faded", Boolean(target.value) && !group.classList.contains(target.value));
    }
  });
  only.hidden = false;
}
