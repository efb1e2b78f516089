// Shows the picture of a sample as large as possible: zoom and pan by wheel, pinch, drag and keys, and a loupe.
// Two pictures side by side move together.
"use strict";

const MAX_ZOOM = 16;
const ZOOM_STEP = 1.5; // of a key or button
const PAN_STEP = 0.12; // of the stage, of a key
const LOUPE_ZOOM = 3; // at least
const PIXELATED = 3; // enlargement from which pixels are shown as squares
const KEPT_PICTURES = 12;

const pictures = new Map(); // sample index -> its picture; the last ones that were requested
const zoom = { scale: 1, x: 0, y: 0 }; // x, y: shift in shares of the stage
const pointers = new Map(); // pointer id -> its last place, while it is down
let loupeOn = false;

const stages = () => [...document.querySelectorAll("#view .stage")];
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// Returns the picture of a sample from the data; it begins to load. `ready` becomes whether it could be shown.
function picture(index, alt) {
  const known = pictures.get(index) ?? loadPicture(index, "full");
  pictures.delete(index);
  pictures.set(index, known); // the last one requested
  for (const oldest of [...pictures.keys()].slice(0, -KEPT_PICTURES)) pictures.delete(oldest);
  if (alt) known.alt = alt;
  return known;
}

function loadPicture(index, size) {
  const image = element("img", { alt: "", draggable: false, src: address(`pictures/${index}?size=${size}`) });
  image.ready = image.decode().then(() => true, () => false);
  return image;
}

// Returns a stage with the picture of a sample; until it is loaded, or if it is gone, with its thumbnail.
function stage(sample, alt) {
  const full = ready ? picture(sample.index, alt) : null;
  const place = element("div", { class: "stage" });
  const shown = full?.complete && full.naturalWidth ? full : element("img", { alt, draggable: false, src: address(`thumbs/${sample.index}`) });
  place.append(shown);
  if (full && shown !== full) full.ready.then((good) => good && place.isConnected && exchange(place, full));
  else requestAnimationFrame(() => applyZoom());
  place.onpointerdown = startPointer;
  place.onpointermove = movePointer;
  place.onpointerup = place.onpointercancel = endPointer;
  place.onpointerleave = () => place.querySelector(".loupe")?.remove();
  place.ondblclick = (event) => (zoom.scale > 1 ? resetZoom() : zoomAt(4, ...shares(place, event)));
  place.addEventListener("wheel", wheel, { passive: false });
  return place;
}

function exchange(place, image) {
  place.firstElementChild.replaceWith(image);
  applyZoom();
}

// Returns the size of a picture in its stage when all of it is visible, in pixels.
function fitted(place) {
  const image = place.firstElementChild;
  const box = place.getBoundingClientRect();
  const ratio = Math.min(box.width / (image.naturalWidth || 1), box.height / (image.naturalHeight || 1));
  return { width: image.naturalWidth * ratio, height: image.naturalHeight * ratio, ratio, box };
}

// Returns the place of an event in shares of the stage, from its centre.
function shares(place, event) {
  const box = place.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width - 0.5, (event.clientY - box.top) / box.height - 0.5];
}

function applyZoom() {
  const limit = (zoom.scale - 1) / 2;
  zoom.x = clamp(zoom.x, -limit, limit);
  zoom.y = clamp(zoom.y, -limit, limit);
  for (const place of stages()) {
    const image = place.firstElementChild;
    image.style.transform = `translate(${100 * zoom.x}%, ${100 * zoom.y}%) scale(${zoom.scale})`;
    image.classList.toggle("pixels", fitted(place).ratio * zoom.scale > PIXELATED);
    place.classList.toggle("zoomed", zoom.scale > 1);
    if (zoom.scale > 1) sharpen(place);
  }
  byId("level").textContent = `${Math.round(100 * zoom.scale)}%`;
}

// Loads more pixels of a picture whose original is larger, once they can be seen.
function sharpen(place) {
  const image = place.firstElementChild;
  const size = image.original;
  const seen = fitted(place).width * zoom.scale * devicePixelRatio;
  if (!size || image.sharpening || size[0] <= image.naturalWidth || seen <= 1.2 * image.naturalWidth) return;
  image.sharpening = true;
  const large = loadPicture(image.sampleIndex, "large");
  Object.assign(large, { alt: image.alt, original: size, sampleIndex: image.sampleIndex, sharpening: true });
  large.ready.then((good) => good && image.parentNode === place && exchange(place, large));
}

function resetZoom() {
  Object.assign(zoom, { scale: 1, x: 0, y: 0 });
  applyZoom();
}

function zoomAt(factor, x = 0, y = 0) {
  const next = clamp(zoom.scale * factor, 1, MAX_ZOOM);
  const change = next / zoom.scale;
  Object.assign(zoom, { scale: next, x: x - (x - zoom.x) * change, y: y - (y - zoom.y) * change });
  applyZoom();
}

// Shows one pixel of the original as one pixel of the screen.
function actualSize() {
  const place = stages()[0];
  if (!place) return;
  const image = place.firstElementChild;
  const wanted = (image.original?.[0] ?? image.naturalWidth) / devicePixelRatio / fitted(place).width;
  zoomAt(clamp(wanted, 1, MAX_ZOOM) / zoom.scale);
}

function pan(x, y) {
  zoom.x += x;
  zoom.y += y;
  applyZoom();
}

function wheel(event) {
  event.preventDefault();
  zoomAt(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), ...shares(event.currentTarget, event));
}

function startPointer(event) {
  if (event.button) return;
  event.currentTarget.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
}

function endPointer(event) {
  pointers.delete(event.pointerId);
}

function movePointer(event) {
  const place = event.currentTarget;
  if (loupeOn) drawLoupe(place, event.clientX, event.clientY);
  const before = pointers.get(event.pointerId);
  if (!before) return;
  const now = { x: event.clientX, y: event.clientY };
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  const box = place.getBoundingClientRect();
  if (other) {
    const distance = (one) => Math.hypot(one.x - other.x, one.y - other.y) || 1;
    const middle = { clientX: (now.x + other.x) / 2, clientY: (now.y + other.y) / 2 };
    zoomAt(distance(now) / distance(before), ...shares(place, middle));
  } else if (zoom.scale > 1) pan((now.x - before.x) / box.width, (now.y - before.y) / box.height);
  pointers.set(event.pointerId, now);
}

function toggleLoupe() {
  loupeOn = !loupeOn;
  byId("loupe").setAttribute("aria-pressed", loupeOn);
  for (const place of stages()) {
    place.querySelector(".loupe")?.remove();
    const box = place.getBoundingClientRect();
    if (loupeOn) drawLoupe(place, box.left + box.width / 2, box.top + box.height / 2);
  }
}

// Draws the loupe over a point of the screen: the same picture, enlarged around this point.
function drawLoupe(place, clientX, clientY) {
  const image = place.firstElementChild;
  const { width, height, ratio, box } = fitted(place);
  const lens = place.querySelector(".loupe") ?? place.appendChild(element("div", { class: "loupe" }, element("img", { alt: "" })));
  const enlarged = lens.firstElementChild;
  if (enlarged.src !== image.src) enlarged.src = image.src;
  const factor = Math.max(LOUPE_ZOOM * zoom.scale, 1 / ratio / devicePixelRatio);
  const x = clientX - box.left;
  const y = clientY - box.top;
  const half = lens.offsetWidth / 2;
  const left = (x - box.width / 2 - zoom.x * box.width) / (width * zoom.scale) + 0.5; // share of the picture
  const top = (y - box.height / 2 - zoom.y * box.height) / (height * zoom.scale) + 0.5;
  Object.assign(lens.style, { left: `${x - half}px`, top: `${y - half}px` });
  Object.assign(enlarged.style, {
    width: `${width * factor}px`,
    height: `${height * factor}px`,
    left: `${half - left * width * factor}px`,
    top: `${half - top * height * factor}px`,
  });
}

// Moves the loupe of the keyboard with Shift and an arrow, or the picture if it is enlarged.
function panByKey(x, y) {
  const lens = document.querySelector("#view .loupe");
  if (zoom.scale > 1 || !lens) return pan(-x * PAN_STEP, -y * PAN_STEP);
  const box = lens.getBoundingClientRect();
  const step = PAN_STEP * lens.parentNode.clientWidth;
  for (const place of stages()) drawLoupe(place, box.left + box.width / 2 + x * step, box.top + box.height / 2 + y * step);
}

const ZOOM_KEYS = {
  "+": () => zoomAt(ZOOM_STEP),
  "=": () => zoomAt(ZOOM_STEP),
  "-": () => zoomAt(1 / ZOOM_STEP),
  0: resetZoom,
  1: actualSize,
  l: toggleLoupe,
};
const PAN_KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
