"use strict";
// Filters the suspects, and by label also the samples after them. Without JavaScript the page shows all samples and no filters.
const form = document.getElementById("filters");
if (form) {
  const cards = [...document.querySelectorAll("#gallery > li")];
  const further = [...document.querySelectorAll("#beyond li")];
  const qualities = [...new Set(cards.map((card) => Number(card.dataset.quality)))].sort((a, b) => a - b);
  const { given, suggested, quality, shown } = form.elements;
  const status = document.getElementById("count");
  quality.max = qualities.length - 1;
  quality.defaultValue = qualities.length - 1;

  const formatQuality = (score) => (score < 0.01 ? "1%" : `${Math.round(100 * score)}%`);

  const applyFilters = () => {
    const limit = qualities[quality.value];
    let count = 0;
    const hasLabels = ({ dataset }) =>
      (!given.value || given.value === dataset.given) && (!suggested.value || suggested.value === dataset.suggested);
    for (const card of cards) {
      card.hidden = !(hasLabels(card) && Number(card.dataset.quality) <= limit);
      count += card.hidden ? 0 : 1;
    }
    for (const card of further) card.hidden = !hasLabels(card);
    shown.value = formatQuality(limit);
    quality.setAttribute("aria-valuetext", shown.value);
    status.textContent = `${count} of ${cards.length} suspects shown`;
  };
  form.addEventListener("input", applyFilters);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(applyFilters));
  form.hidden = false;
  applyFilters();
}
