"use strict";
// Narrows the suspects down, and by their labels what comes after them. Without it the page shows every sample and no filters.
const form = document.getElementById("filters");
if (form) {
  const cards = [...document.querySelectorAll("#gallery > li")];
  const beyond = [...document.querySelectorAll("#beyond li")];
  const steps = [...new Set(cards.map((card) => Number(card.dataset.quality)))].sort((a, b) => a - b);
  const { given, suggested, quality, shown } = form.elements;
  const count = document.getElementById("count");
  quality.max = steps.length - 1;
  quality.defaultValue = steps.length - 1;

  const readable = (score) =>
    score <= 0 ? "0" : score < 0.0001 ? "0.0001" : score.toFixed(Math.max(2, 1 - Math.floor(Math.log10(score))));

  const narrow = () => {
    const most = steps[quality.value];
    let left = 0;
    const fits = ({ dataset: { given: was, suggested: better } }) =>
      (!given.value || given.value === was) && (!suggested.value || suggested.value === better);
    for (const card of cards) {
      card.hidden = !(fits(card) && Number(card.dataset.quality) <= most);
      left += card.hidden ? 0 : 1;
    }
    for (const card of beyond) card.hidden = !fits(card);
    shown.value = readable(most);
    quality.setAttribute("aria-valuetext", shown.value);
    count.textContent = `${left} of ${cards.length} suspects shown`;
  };
  form.addEventListener("input", narrow);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(narrow));
  form.hidden = false;
  narrow();
}
